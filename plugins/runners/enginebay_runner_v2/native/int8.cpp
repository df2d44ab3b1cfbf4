#include "int8.h"

#include "panel.h"
#include "parallel.h"

namespace enginebay {
namespace {

constexpr int64_t kGroup = 256;      // rows that a thread takes through a block of weights: they stay in its L2 cache
constexpr int64_t kRowsAtOnce = 32;  // rows of a panel
constexpr int64_t kWorth = 1 << 14;  // weights, or inputs, below which a fork costs more than it saves

// A product is rounded before it is added to, whatever the compiler would rather do: the reference has no fused one.
inline v16 settled(v16 v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#else
  __asm__("" : "+m"(v));
#endif
  return v;
}

// To the nearest whole number, of two the even one.
inline i16 whole(v16 x, float by) {
  const v16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const v16 shifted = settled(x * splat(by)) + magic;
  return bits_of<i16>(&shifted) - 0x4b400000;
}

using b16 = int8_t __attribute__((vector_size(16)));

template <class T>
void quantise(const T* x, int8_t* to, int64_t count, float by) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const b16 narrow = __builtin_convertvector(whole(load(x + i), by), b16);
    std::memcpy(to + i, &narrow, 16);
  }
  if (i == count) return;
  const b16 narrow = __builtin_convertvector(whole(load_some(x + i, int(count - i)), by), b16);
  std::memcpy(to + i, &narrow, count - i);
}

// Sums [32 a block] → outputs.
template <class T, class Out>
void finish(const int32_t* sums, const int8_t* block, int64_t size, bool shifted, float scale, const T* bias, Out* out,
            int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    const int8_t* tail = block + i / kBlock * size + size - kInt8Tail + i % kBlock * 4;
    i16 sum = bits_of<i16>(sums + i);
    if (shifted) sum -= bits_of<i16>(tail + kBlock * 4);
    v16 v = settled(__builtin_convertvector(sum, v16) * bits_of<v16>(tail) * splat(scale));
    if (bias) v += load_upto(bias + i, count - i);
    store_upto(out + i, v, count - i);
  }
}

}  // namespace

template <class T>
float int8_row(const T* x, int8_t* whole, int64_t count) {
  const Int8Scale scale = int8_scale(reach(x, count), 127);
  if (scale.by == 0)
    std::memset(whole, 0, count);
  else
    quantise(x, whole, count, scale.by);
  return scale.back;
}

template <class T>
void int8_quantise(const T* x, int8_t* quantised, float* scales, int64_t rows, int64_t inputs, int threads) {
  const int64_t step = int8_padded(inputs);
  parallel(rows, rows * inputs < kWorth ? 1 : threads, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      int8_t* to = quantised + row * step;
      std::memset(to + inputs, 0, step - inputs);
      scales[row] = int8_row(x + row * inputs, to, inputs);
    }
  });
}

template <class T>
void int8_pack(const T* weight, int8_t* packed, int64_t outputs, int64_t inputs, int threads) {
  const int64_t size = int8_block(inputs), blocks = (outputs + kBlock - 1) / kBlock;
  parallel(blocks, threads, [&](int64_t first, int64_t end) {
    for (int64_t block = first; block < end; ++block) {
      int8_t* at = packed + block * size;
      std::memset(at, 0, size);
      int8_t* tail = at + size - kInt8Tail;
      for (int64_t n = 0; n < kBlock && block * kBlock + n < outputs; ++n) {
        const T* row = weight + (block * kBlock + n) * inputs;
        const Int8Scale scale = int8_scale(reach(row, inputs), 127);
        std::memcpy(tail + n * 4, &scale.back, 4);
        if (scale.by == 0) continue;
        int32_t sum = 0;
        for (int64_t from = 0; from < inputs; from += kInt8Depth) {
          alignas(64) int8_t some[kInt8Depth] = {};
          quantise(row + from, some, inputs - from < kInt8Depth ? inputs - from : kInt8Depth, scale.by);
          int8_t* to = at + from * kBlock + n / 16 * 1024 + n % 16 * 4;
          for (int k = 0; k < kInt8Depth; ++k) {
            to[k / 4 * 64 + k % 4] = some[k];
            sum += some[k];
          }
        }
        sum *= 128;
        std::memcpy(tail + kBlock * 4 + n * 4, &sum, 4);
      }
    }
  });
}

template <class T, class Out>
void int8_linear(const int8_t* x, const float* scales, const int8_t* packed, const T* bias, Out* out, int64_t rows,
                 int64_t inputs, int64_t outputs, int threads) {
  const int64_t blocks = (outputs + kBlock - 1) / kBlock, size = int8_block(inputs), step = int8_padded(inputs);
  const int64_t groups = (rows + kGroup - 1) / kGroup;
  parallel(blocks * groups, outputs * inputs < kWorth ? 1 : threads, [&](int64_t first, int64_t end) {
    PanelScope scope;
    alignas(64) int32_t sums[kRowsAtOnce * kBlock * 4];
    for (int64_t item = first; item < end;) {
      const int64_t group = item / blocks, block = item % blocks, from = group * kGroup;
      const int64_t count = rows - from < kGroup ? rows - from : kGroup;
      int64_t some = end - item < blocks - block ? end - item : blocks - block;  // of this group
      some = count > kRowsAtOnce ? 1 : some < 4 ? some : 4;
      const int8_t* at = packed + block * size;
      const int64_t left = outputs - block * kBlock, width = left < some * kBlock ? left : some * kBlock;
      for (int64_t r = from; r < from + count; r += kRowsAtOnce) {
        const int64_t now = from + count - r < kRowsAtOnce ? from + count - r : kRowsAtOnce;
        const bool shifted = int8_panel(x + r * step, step, now, at, size, some, step / kInt8Depth, sums, r == from);
        for (int64_t i = 0; i < now; ++i)
          finish(sums + i * some * kBlock, at, size, shifted, scales[r + i], bias ? bias + block * kBlock : nullptr,
                 out + (r + i) * outputs + block * kBlock, width);
      }
      item += some;
    }
  });
}

template float int8_row(const float*, int8_t*, int64_t);
template float int8_row(const bf16*, int8_t*, int64_t);
template void int8_quantise(const float*, int8_t*, float*, int64_t, int64_t, int);
template void int8_quantise(const bf16*, int8_t*, float*, int64_t, int64_t, int);
template void int8_pack(const float*, int8_t*, int64_t, int64_t, int);
template void int8_pack(const bf16*, int8_t*, int64_t, int64_t, int);
template void int8_linear(const int8_t*, const float*, const int8_t*, const float*, float*, int64_t, int64_t, int64_t,
                          int);
template void int8_linear(const int8_t*, const float*, const int8_t*, const bf16*, bf16*, int64_t, int64_t, int64_t, int);
template void int8_linear(const int8_t*, const float*, const int8_t*, const bf16*, float*, int64_t, int64_t, int64_t, int);

}  // namespace enginebay
