#include "attention_int8_products.h"

#define INLINE inline __attribute__((always_inline))  // sums must stay in registers

namespace enginebay {
namespace {

constexpr int kDigits = 4, kParts = 4;  // rows and parts whose sums are in registers together

// One word of a part times 4 digits of each row. `Digit`: int8_t for keys, uint8_t for values.
struct Plain {
  static i16 excess(const int8_t*, int64_t) { return i16{}; }
  template <class Digit, int R, int N>
  static INLINE void step(const Digit* a, int64_t lda, const int8_t* const (&b)[N], i16 (&sums)[R][N]) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const i16 words = bits_of<i16>(b[n]);
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        const i16 one = (words << (24 - 8 * p)) >> 24;
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[r][n] += one * int32_t(a[r * lda + p]);
      }
    }
  }
};

#if defined(__AVX512VNNI__)
struct Dots {  // the instruction takes one side without a sign: keys are 128 more, and the excess is taken off the sum
  static i16 excess(const int8_t* a, int64_t count) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += a[i];
    return i16{} + sum * 128;
  }
  template <int R, int N>
  static INLINE void step(const int8_t* a, int64_t lda, const int8_t* const (&b)[N], i16 (&sums)[R][N]) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m512i words = _mm512_xor_si512(_mm512_loadu_si512(b[n]), _mm512_set1_epi8(int8_t(0x80)));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512i four = _mm512_set1_epi32(bits_of<int32_t>(a + r * lda));
        sums[r][n] = (i16)_mm512_dpbusd_epi32((__m512i)sums[r][n], words, four);
      }
    }
  }
  template <int R, int N>
  static INLINE void step(const uint8_t* a, int64_t lda, const int8_t* const (&b)[N], i16 (&sums)[R][N]) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m512i words = _mm512_loadu_si512(b[n]);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512i four = _mm512_set1_epi32(bits_of<int32_t>(a + r * lda));
        sums[r][n] = (i16)_mm512_dpbusd_epi32((__m512i)sums[r][n], four, words);
      }
    }
  }
};
constexpr bool kVnni = true;
#else
using Dots = Plain;
constexpr bool kVnni = false;
#endif

template <class How, int R, int N, class Digit, class Parts>
void fixed(const Digit* a, int64_t lda, int64_t part, const Parts& parts, int32_t* c, int64_t ldc) {
  i16 sums[R][N] = {};
  if constexpr (Parts::keys)
    for (int r = 0; r < R; ++r) {
      const i16 excess = How::excess(a + r * lda, parts.steps * parts.quads * 4);
      for (int n = 0; n < N; ++n) sums[r][n] -= excess;
    }
  for (int64_t s = 0; s < parts.steps; ++s) {
    const int8_t* b[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      b[n] = parts(part + n, s);
      parts.ahead();
    }
    for (int64_t q = 0; q < parts.quads; ++q, a += 4) {
      How::step(a, lda, b, sums);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) b[n] += 64;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) std::memcpy(c + r * ldc + (part + n) * 16, &sums[r][n], 64);
}

template <class How, int R, class Digit, class Parts>
void some(const Digit* a, int64_t lda, int64_t rows, const Parts& parts, int32_t* c, int64_t ldc) {
  if (rows < R) {
    if constexpr (R > 1) some<How, R - 1>(a, lda, rows, parts, c, ldc);
    return;
  }
  int64_t n = 0;
  for (; n + kParts <= parts.parts; n += kParts) fixed<How, R, kParts>(a, lda, n, parts, c, ldc);
  for (; n < parts.parts; ++n) fixed<How, R, 1>(a, lda, n, parts, c, ldc);
}

template <class How, class Digit, class Parts>
void every(const Digit* a, int64_t lda, int64_t rows, const Parts& parts, int32_t* c, int64_t ldc) {
  for (int64_t r = 0; r < rows; r += kDigits)
    some<How, kDigits>(a + r * lda, lda, rows - r < kDigits ? rows - r : kDigits, parts, c + r * ldc, ldc);
}

template <class Digit, class Parts>
void product(const Digit* a, int64_t lda, int64_t rows, const Parts& parts, int32_t* c, int64_t ldc) {
  if (kind() == Kind::amx && int8_amx(a, lda, rows, parts, c, ldc)) return;
  // a processor may have VNNI and no bfloat16: there the least kind is the best one
  if (kVnni && (kind() != Kind::vector || best_kind() == Kind::vector)) return every<Dots>(a, lda, rows, parts, c, ldc);
  every<Plain>(a, lda, rows, parts, c, ldc);
}

}  // namespace

Int8Scope::~Int8Scope() { int8_amx_leave(); }

void int8_scores(const int8_t* digits, int64_t lda, int64_t rows, const Int8Keys& keys, int32_t* sums, int64_t ldc) {
  product(digits, lda, rows, keys, sums, ldc);
}

void int8_values(const uint8_t* digits, int64_t lda, int64_t rows, const Int8Values& values, int32_t* sums, int64_t ldc) {
  product(digits, lda, rows, values, sums, ldc);
}

}  // namespace enginebay
