// Sixteen floats at a time, by the compiler's own vectors: whatever the processor has, one source.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace enginebay {

struct bf16 {
  uint16_t bits;
};

using v16 = float __attribute__((vector_size(64)));
using i16 = int32_t __attribute__((vector_size(64)));
using u16 = uint32_t __attribute__((vector_size(64)));
using h16 = uint16_t __attribute__((vector_size(32)));

inline v16 splat(float x) { return v16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

template <class V>
inline V bits_of(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  return bits_of<float>(&bits);
}

inline v16 load(const float* from) { return bits_of<v16>(from); }
inline v16 widen(h16 x) {
#if defined(__AVX512F__)  // in one instruction, which compilers make three of
  return (v16)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#else
  const u16 wide = __builtin_convertvector(x, u16) << 16;
  return bits_of<v16>(&wide);
#endif
}
inline v16 load(const bf16* from) { return widen(bits_of<h16>(from)); }

inline void store(float* to, v16 v) { std::memcpy(to, &v, sizeof v); }
inline void store(bf16* to, v16 v) {
#if defined(__AVX512BF16__)
  __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &rounded, sizeof rounded);
#else
  u16 bits = bits_of<u16>(&v);
  u16 rounded = (bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16;
  u16 quiet = (bits >> 16) | 0x40u;
  u16 nan = (u16)(v != v);
  h16 half = __builtin_convertvector((nan & quiet) | (~nan & rounded), h16);
  std::memcpy(to, &half, sizeof half);
#endif
}

// 32 neighbours at once: what AMX loads as a whole is not stored in halves, which it would have to wait for.
inline void store_pair(float* to, v16 a, v16 b) {
  store(to, a);
  store(to + 16, b);
}
inline void store_pair(bf16* to, v16 a, v16 b) {
#if defined(__AVX512BF16__)
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
  std::memcpy(to, &both, sizeof both);
#else
  store(to, a);
  store(to + 16, b);
#endif
}

// The first `count` (under 16) of a vector; the rest of a loaded one is zero.
template <class T>
inline v16 load_some(const T* from, int count) {
  T whole[16] = {};
  std::memcpy(whole, from, sizeof(T) * count);
  return load(whole);
}
template <class T>
inline void store_some(T* to, v16 v, int count) {
  T whole[16];
  store(whole, v);
  std::memcpy(to, whole, sizeof(T) * count);
}

template <class T>
inline v16 load_upto(const T* from, int64_t left) {
  return left >= 16 ? load(from) : load_some(from, int(left));
}
template <class T>
inline void store_upto(T* to, v16 v, int64_t left) {
  left >= 16 ? store(to, v) : store_some(to, v, int(left));
}

// As `x` would be after a trip through memory of type T.
template <class T>
inline v16 rounded(v16 x) {
  T there[16];
  store(there, x);
  return load(there);
}
template <>
inline v16 rounded<float>(v16 x) {
  return x;
}
#if defined(__AVX512BF16__)
template <>
inline v16 rounded<bf16>(v16 x) {  // in registers
  return widen((h16)_mm512_cvtneps_pbh((__m512)x));
}
#endif

inline v16 choose(i16 mask, v16 yes, v16 no) {
#if defined(__AVX512DQ__)
  return (v16)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)no, (__m512)yes);
#endif
  i16 a, b;
  std::memcpy(&a, &yes, sizeof a);
  std::memcpy(&b, &no, sizeof b);
  i16 c = (mask & a) | (~mask & b);
  return bits_of<v16>(&c);
}

// In one order, so that a sum depends on nothing but its terms: halves are added up, then their halves.
inline float sum(v16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float x[16];
  store(x, v);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) x[i] += x[i + step];
  return x[0];
#endif
}
// NaN if any is.
inline float largest(v16 v) {
#if defined(__AVX512F__)
  if (_mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q)) return std::numeric_limits<float>::quiet_NaN();
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best = v[0];
  for (int i = 1; i < 16; ++i) best = v[i] > best || v[i] != v[i] ? v[i] : best;
  return best;
#endif
}

// As whole numbers, absolute values keep their order, and infinities and NaN are above all others: the larger of those
// seen so far and of |x|, and the largest of them.
inline i16 larger_bits(i16 most, v16 x) {
  const i16 bits = bits_of<i16>(&x) & 0x7fffffff;
  return bits > most ? bits : most;
}
inline float largest_of(i16 most) {
#if defined(__AVX512F__)
  const int32_t best = _mm512_reduce_max_epi32((__m512i)most);
#else
  int32_t best = 0;
  for (int i = 0; i < 16; ++i) best = most[i] > best ? most[i] : best;
#endif
  return bits_of<float>(&best);
}

// e^x to 2 units in the last place; 0 below the normal numbers, NaN stays NaN, and e^0 is exactly 1.
inline v16 exp(v16 x) {
  const v16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  v16 bounded = choose(x > splat(88.5f), splat(88.5f), choose(x < splat(-87.5f), splat(-87.5f), x));
  v16 shifted = bounded * 1.44269504088896341f + magic;
  v16 n = shifted - magic;
  v16 r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  v16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  i16 exponent = bits_of<i16>(&shifted) << 23;
  i16 scaled = bits_of<i16>(&p) + exponent;
  v16 y = bits_of<v16>(&scaled);
  y = choose(x < splat(-87.33f), v16{}, y);
  y = choose(x > splat(88.5f), splat(std::numeric_limits<float>::infinity()), y);
  return choose(x != x, x, y);
}

inline v16 sigmoid(v16 x) { return splat(1.0f) / (exp(-x) + 1.0f); }
inline v16 tanh(v16 x) { return splat(1.0f) - splat(2.0f) / (exp(x + x) + 1.0f); }

}  // namespace enginebay
