// Keys and values of up to 64 tokens, laid out as the packed weight of panel.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "panel.h"

namespace enginebay {

constexpr int kChunk = 64;  // tokens that are packed and scored together

// 16 rows of `count` (up to 16) 32-bit words to `count` rows of 16, `step` words apart.
inline void transpose(const uint32_t* const* rows, int count, uint32_t* to, int64_t step) {
#if defined(__AVX512F__)
  const __mmask16 mask = __mmask16((1u << count) - 1);
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_maskz_loadu_epi32(mask, rows[i]);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + 2 + j]);
      a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + 2 + j]);
    }
  for (int j = 0; j < 4; ++j) {
    b[j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
    b[4 + j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
    b[8 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    b[12 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
  }
  for (int j = 0; j < 8; ++j) {
    a[j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0x88);
    a[8 + j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0xdd);
  }
  for (int i = 0; i < 16; ++i)
    if (i < count) _mm512_storeu_si512(to + i * step, a[i]);
#else
  for (int i = 0; i < count; ++i)
    for (int r = 0; r < 16; ++r) {
      uint32_t word;
      std::memcpy(&word, rows[r] + i, 4);
      to[i * step + r] = word;
    }
#endif
}

// Tokens are outputs, dimensions inputs. `rows` has kChunk pointers, those beyond `tokens` to zeros.
template <class T>
void pack_keys(const T* const* rows, int64_t tokens, int64_t size, T* packed) {
  constexpr int per_word = 4 / sizeof(T);
  constexpr bool pairs = per_word == 2;
  const int64_t words = size / per_word, block = padded<T>(size) / per_word * kBlock;
  const int64_t whole = padded<T>(size) / per_word;
  for (int64_t half = 0; half * 16 < (tokens + kBlock - 1) / kBlock * kBlock; ++half) {
    uint32_t* const base = reinterpret_cast<uint32_t*>(packed) + half / 2 * block;
    for (int64_t word = 0; word < whole; word += 16) {
      const uint32_t* from[16];
      for (int i = 0; i < 16; ++i) from[i] = reinterpret_cast<const uint32_t*>(rows[half * 16 + i]) + word;
      const int64_t left = words - word;
      uint32_t* to = pairs ? base + (word / 16 * 2 + half % 2) * 256 : base + word * 32 + half % 2 * 16;
      transpose(from, left < 16 ? int(left) : 16, to, pairs ? 16 : 32);
      if (pairs && left < 16) std::memset(to + left * 16, 0, (16 - left) * 64);
    }
  }
}

// Dimensions are outputs, tokens inputs.
inline void pack_values(const float* const* rows, int64_t tokens, int64_t size, float* packed) {
  for (int64_t block = 0; block * kBlock < size; ++block)
    for (int64_t token = 0; token < (tokens + 31) / 32 * 32; ++token) {
      float* to = packed + (block * kChunk + token) * kBlock;
      const int64_t count = size - block * kBlock < kBlock ? size - block * kBlock : kBlock;
      if (count < kBlock) std::memset(to, 0, kBlock * sizeof(float));
      std::memcpy(to, rows[token] + block * kBlock, count * sizeof(float));
    }
}
inline void pack_values(const bf16* const* rows, int64_t tokens, int64_t size, bf16* packed) {
  for (int64_t block = 0; block * kBlock < size; ++block) {
    const int64_t count = size - block * kBlock < kBlock ? size - block * kBlock : kBlock;
    for (int64_t pair = 0; pair < (tokens + 31) / 32 * 16; ++pair) {
      bf16* to = packed + block * kChunk * kBlock + pair / 16 * 1024 + pair % 16 * 32;
      const bf16 *a = rows[2 * pair], *b = rows[2 * pair + 1];
#if defined(__AVX512BW__)
      const __mmask32 mask = __mmask32((uint64_t(1) << count) - 1);
      const __m512i x = _mm512_maskz_loadu_epi16(mask, a + block * kBlock);
      const __m512i y = _mm512_maskz_loadu_epi16(mask, b + block * kBlock);
      const __m512i low = _mm512_or_si512(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)),
                                          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(y)), 16));
      const __m512i high =
          _mm512_or_si512(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)),
                          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(y, 1)), 16));
      _mm512_storeu_si512(to, low);
      _mm512_storeu_si512(to + 512, high);
#else
      for (int n = 0; n < kBlock; ++n) {
        bf16* there = to + n / 16 * 512 + n % 16 * 2;
        there[0] = n < count ? a[block * kBlock + n] : bf16{0};
        there[1] = n < count ? b[block * kBlock + n] : bf16{0};
      }
#endif
    }
  }
}

}  // namespace enginebay
