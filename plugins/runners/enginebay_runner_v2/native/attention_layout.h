// How keys and values lie in a block of the cache: as the products read them, where sizes allow, else token by token.
//
// bfloat16, a block size that is a multiple of 16, key sizes of 32 and value sizes of 16: a block is
// keys   [kv_heads][block size / 16][key size / 2][16 tokens][2 dimensions]
// values [kv_heads][block size / G][value size / 16][G / 2][16 dimensions][2 tokens], G = 32 where it divides the block
// size, else 16. attention_reference.py reads and writes the same. A violating change lets the layout depend on more
// than dtype, sizes and strides: a cache that the references filled would be garbage to the kernels.
#pragma once
#include "kernels.h"

namespace enginebay {

constexpr int64_t kLanes = 16;  // tokens of a group of packed keys; dimensions of a slice of packed values
constexpr int64_t kUnit = 32;   // tokens whose packed values lie together, where blocks are so large

// `seen` tokens from `from` on of a request's key head; 0: none.
struct Stretch {
  int64_t request, head, from, seen;
};

template <class T>
bool packed(const Attention<T>& a) {
  const auto whole = [&](const Pages<T>& p, int64_t size) { return p.head == size && p.token == a.kv_heads * size; };
  return sizeof(T) == 2 && a.block_size % kLanes == 0 && a.key_size % 32 == 0 && a.value_size % kLanes == 0 &&
         whole(a.keys, a.key_size) && whole(a.values, a.value_size);
}

// G of the layout.
template <class T>
int64_t together(const Attention<T>& a) {
  return a.block_size % kUnit == 0 ? kUnit : kLanes;
}

// Where the packed key of token `at` of a block begins; its pairs of dimensions are 16 pairs apart.
template <class T>
T* packed_key(const Attention<T>& a, int64_t block, int64_t head, int64_t at) {
  return a.keys.at + block * a.keys.block + (head * a.block_size + at / kLanes * kLanes) * a.key_size + at % kLanes * 2;
}
// Where the packed value of token `at` of a block begins: dimensions are 2 apart, slices of 16 are 16 G apart.
template <class T>
T* packed_value(const Attention<T>& a, int64_t block, int64_t head, int64_t at) {
  const int64_t g = together(a), in = at % g;
  return a.values.at + block * a.values.block + (head * a.block_size + at - in) * a.value_size + in / 2 * 32 + in % 2;
}

template <class T>
void put_key(const Attention<T>& a, int64_t slot, int64_t head, const T* key, bool pack) {
  const int64_t block = slot / a.block_size, at = slot % a.block_size;
  if (!pack) {
    std::memcpy(a.keys.at + block * a.keys.block + at * a.keys.token + head * a.keys.head, key, a.key_size * sizeof(T));
    return;
  }
  T* to = packed_key(a, block, head, at);
  for (int64_t i = 0; i < a.key_size; i += 2) std::memcpy(to + i * kLanes, key + i, 2 * sizeof(T));
}

// to[0], to[2], … [30] become the 16 numbers; what is between them is not touched, as another thread may write there.
template <class T>
inline void put_every_other(T* to, const T* numbers) {
  for (int64_t j = 0; j < kLanes; ++j) to[2 * j] = numbers[j];
}
#if defined(__AVX512BW__)
inline void put_every_other(bf16* to, const bf16* numbers) {
  _mm512_mask_storeu_epi16(to, 0x55555555, _mm512_cvtepu16_epi32((__m256i)bits_of<h16>(numbers)));
}
#endif

template <class T>
void put_value(const Attention<T>& a, int64_t slot, int64_t head, const T* value, bool pack) {
  const int64_t block = slot / a.block_size, at = slot % a.block_size;
  if (!pack) {
    std::memcpy(a.values.at + block * a.values.block + at * a.values.token + head * a.values.head, value,
                a.value_size * sizeof(T));
    return;
  }
  T* to = packed_value(a, block, head, at);
  const int64_t step = kLanes * together(a);
  for (int64_t i = 0; i < a.value_size; i += kLanes, to += step) put_every_other(to, value + i);
}

}  // namespace enginebay
