#include "attention_products.h"

#define INLINE inline __attribute__((always_inline))  // sums must stay in registers

namespace enginebay {
namespace {

struct Pairs {  // a pair of bfloat16 is two floats: the low half shifted up, the high half as it is
#if defined(__AVX512F__)
  static constexpr int rows = 4, parts = 4;
#else
  static constexpr int rows = 2, parts = 1;
#endif
  template <int R, int N>
  static INLINE void step(const bf16* a, int64_t lda, const bf16* const (&b)[N], v16 (&sums)[R][N]) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      u16 w = bits_of<u16>(b[n]);
      u16 low = w << 16, high = w & 0xffff0000u;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sums[r][n] += bits_of<v16>(&low) * widen(a[r * lda]);
        sums[r][n] += bits_of<v16>(&high) * widen(a[r * lda + 1]);
      }
    }
  }
};

#if defined(__AVX512BF16__)
struct Dots {
  static constexpr int rows = 4, parts = 4;
  template <int R, int N>
  static INLINE void step(const bf16* a, int64_t lda, const bf16* const (&b)[N], v16 (&sums)[R][N]) {
    __m512bh w[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) w[n] = (__m512bh)_mm512_loadu_si512(b[n]);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512bh pair = (__m512bh)_mm512_set1_epi32(bits_of<int32_t>(a + r * lda));
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] = (v16)_mm512_dpbf16_ps((__m512)sums[r][n], pair, w[n]);
    }
  }
};
#endif

// Columns of N parts of c: sums over steps of a [R rows, 2 pairs] times parts(part, step) [pairs, 16, 2].
template <class How, int R, int N, class Parts>
void fixed(const bf16* a, int64_t lda, int64_t part, const Parts& parts, float* c, int64_t ldc) {
  v16 sums[R][N] = {};
  for (int64_t s = 0; s < parts.steps; ++s, a += 2 * parts.pairs) {
    const bf16* b[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      b[n] = parts(part + n, s);
      parts.ahead(part + n, s);
    }
    for (int64_t p = 0; p < parts.pairs; ++p) {
      How::step(a + 2 * p, lda, b, sums);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) b[n] += 32;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(c + r * ldc + (part + n) * 16, sums[r][n]);
}

template <class How, int R, class Parts>
void some(const bf16* a, int64_t lda, int64_t rows, const Parts& parts, float* c, int64_t ldc) {
  if (rows < R) {
    if constexpr (R > 1) some<How, R - 1>(a, lda, rows, parts, c, ldc);
    return;
  }
  int64_t n = 0;
  for (; n + How::parts <= parts.parts; n += How::parts) fixed<How, R, How::parts>(a, lda, n, parts, c, ldc);
  for (; n < parts.parts; ++n) fixed<How, R, 1>(a, lda, n, parts, c, ldc);
}

template <class How, class Parts>
void product(const bf16* a, int64_t lda, int64_t rows, const Parts& parts, float* c, int64_t ldc) {
  for (int64_t r = 0; r < rows; r += How::rows)
    some<How, How::rows>(a + r * lda, lda, rows - r < How::rows ? rows - r : How::rows, parts, c + r * ldc, ldc);
}

template <class Parts>
void best_product(const bf16* a, int64_t lda, int64_t rows, const Parts& parts, float* c, int64_t ldc) {
#if defined(__AVX512BF16__)
  if (kind() != Kind::vector) return product<Dots>(a, lda, rows, parts, c, ldc);
#endif
  product<Pairs>(a, lda, rows, parts, c, ldc);
}

}  // namespace

ProductScope::~ProductScope() { amx_leave(); }

void packed_scores(const bf16* queries, int64_t rows, const KeyParts& keys, float* scores, int64_t ld) {
  if (kind() == Kind::amx) return amx_scores(queries, rows, keys, scores, ld);
  best_product(queries, keys.steps * 32, rows, keys, scores, ld);
}

void packed_values(const bf16* weights, int64_t ld, int64_t rows, const ValueParts& values, float* out) {
  if (kind() == Kind::amx) return amx_values(weights, ld, rows, values, out);
  best_product(weights, ld, rows, values, out, values.parts * 16);
}

}  // namespace enginebay
