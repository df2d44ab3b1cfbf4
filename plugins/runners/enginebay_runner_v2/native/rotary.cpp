#include "attention_int8.h"
#include "parallel.h"

#include <vector>

namespace enginebay {
namespace {

constexpr int64_t kWorth = 16;  // tokens below which a fork costs more than it saves

// The first `dims` of x turned, the halves as pairs.
template <class T>
void turn(const T* x, const float* angles, int64_t dims, int64_t size, T* out) {
  const int64_t half = dims / 2;
  int64_t i = 0;
  for (; i + 32 <= half; i += 32) {
    const v16 cos = load(angles + i), sin = load(angles + half + i);
    const v16 more_cos = load(angles + i + 16), more_sin = load(angles + half + i + 16);
    const v16 first = load(x + i), second = load(x + half + i);
    const v16 more_first = load(x + i + 16), more_second = load(x + half + i + 16);
    store_pair(out + i, first * cos - second * sin, more_first * more_cos - more_second * more_sin);
    store_pair(out + half + i, second * cos + first * sin, more_second * more_cos + more_first * more_sin);
  }
  for (; i < half; i += 16) {
    const int64_t left = half - i;
    const v16 cos = load_upto(angles + i, left), sin = load_upto(angles + half + i, left);
    const v16 first = load_upto(x + i, left), second = load_upto(x + half + i, left);
    store_upto(out + i, first * cos - second * sin, left);
    store_upto(out + half + i, second * cos + first * sin, left);
  }
  if (dims < size) std::memcpy(out + dims, x + dims, (size - dims) * sizeof(T));
}

}  // namespace

template <class T, class C>
void turn_and_write(const Attention<T, C>& a, const T* qkv, const int64_t* positions, const float* table,
                    int64_t dims, T* turned) {
  const int64_t size = a.key_size, step = (a.heads + 2 * a.kv_heads) * size;
  const bool pack = packed(a);
  parallel(a.tokens, a.tokens < kWorth ? 1 : a.threads, [&](int64_t first, int64_t end) {
    std::vector<T> key(size);
    for (int64_t t = first; t < end; ++t) {
      const T *q = qkv + t * step, *k = q + a.heads * size, *v = k + a.kv_heads * size;
      const float* angles = table + positions[t] * dims;
      for (int64_t h = 0; h < a.heads; ++h) turn(q + h * size, angles, dims, size, turned + (t * a.heads + h) * size);
      for (int64_t h = 0; h < a.kv_heads; ++h) {
        turn(k + h * size, angles, dims, size, key.data());
        put_key(a, a.slots[t], h, key.data(), pack);
        put_value(a, a.slots[t], h, v + h * size, pack);
      }
    }
  });
}

template <class T, class C>
void write(const Attention<T, C>& a, const T* k, const T* v) {
  const bool pack = packed(a);
  parallel(a.tokens, a.tokens < kWorth ? 1 : a.threads, [&](int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t)
      for (int64_t h = 0; h < a.kv_heads; ++h) {
        put_key(a, a.slots[t], h, k + (t * a.kv_heads + h) * a.key_size, pack);
        put_value(a, a.slots[t], h, v + (t * a.kv_heads + h) * a.value_size, pack);
      }
  });
}

#define FOR(T, C)                                                                                              \
  template void turn_and_write(const Attention<T, C>&, const T*, const int64_t*, const float*, int64_t, T*); \
  template void write(const Attention<T, C>&, const T*, const T*);
FOR(float, float)
FOR(bf16, bf16)
FOR(float, int8_t)
FOR(bf16, int8_t)
#undef FOR

}  // namespace enginebay
