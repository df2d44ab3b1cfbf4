#include "panel.h"

#include "amx.h"

#define INLINE inline __attribute__((always_inline))  // sums must stay in registers

namespace enginebay {
namespace {

#if defined(__AVX512F__)
constexpr int kRows = 12;  // 24 sums, 2 weights and a broadcast are in 32 registers
#else
constexpr int kRows = 4;
#endif

Kind chosen = best_kind();

struct Single {
  using type = float;
  template <int R, int N>
  static INLINE void step(const float* a, int64_t lda, const float* b, int64_t b_step, int64_t tile, v16 (&sums)[R][N]) {
    v16 w[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) w[n] = load(b + (n / 2) * b_step + tile * kBlock + (n % 2) * 16);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const v16 x = splat(a[r * lda + tile]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] += w[n] * x;
    }
  }
};

struct Pairs {  // a pair of bfloat16 is two floats: the low half shifted up, the high half as it is
  using type = bf16;
  template <int R, int N>
  static INLINE void step(const bf16* a, int64_t lda, const bf16* b, int64_t b_step, int64_t tile, v16 (&sums)[R][N]) {
    for (int p = 0; p < 16; ++p)
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        u16 w = bits_of<u16>(b + (n / 2) * b_step + tile * 1024 + (n % 2) * 512 + p * 32);
        u16 low = w << 16, high = w & 0xffff0000u;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const bf16* pair = a + r * lda + tile * 32 + p * 2;
          sums[r][n] += bits_of<v16>(&low) * widen(pair[0]);
          sums[r][n] += bits_of<v16>(&high) * widen(pair[1]);
        }
      }
  }
};

#if defined(__AVX512BF16__)
struct Dots {
  using type = bf16;
  template <int R, int N>
  static INLINE void step(const bf16* a, int64_t lda, const bf16* b, int64_t b_step, int64_t tile, v16 (&sums)[R][N]) {
    for (int p = 0; p < 16; ++p) {
      __m512bh w[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n)
        w[n] = (__m512bh)_mm512_loadu_si512(b + (n / 2) * b_step + tile * 1024 + (n % 2) * 512 + p * 32);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const __m512bh pair = (__m512bh)_mm512_set1_epi32(bits_of<int32_t>(a + r * lda + tile * 32 + p * 2));
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sums[r][n] = (v16)_mm512_dpbf16_ps((__m512)sums[r][n], pair, w[n]);
      }
    }
  }
};
#endif

template <class How, int R, int B>
void fixed(const typename How::type* a, int64_t lda, const typename How::type* b, int64_t b_step, int64_t tiles, float* c,
           int64_t ldc, bool add, bool stream) {
  v16 sums[R][B * 2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < B * 2; ++n) sums[r][n] = add ? load(c + r * ldc + n * 16) : v16{};
  constexpr int64_t per_tile = Packed<typename How::type>::depth * kBlock * sizeof(typename How::type);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (stream)
      for (int n = 0; n < B; ++n)
        for (int64_t line = 0; line < per_tile; line += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(b + n * b_step) + tile * per_tile + line + 4096);
    How::step(a, lda, b, b_step, tile, sums);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < B * 2; ++n) store(c + r * ldc + n * 16, sums[r][n]);
}

template <class How, int R>
void some(int64_t rows, const typename How::type* a, int64_t lda, const typename How::type* b, int64_t b_step,
          int64_t blocks, int64_t tiles, float* c, int64_t ldc, bool add, bool stream) {
  if (rows < R) {
    if constexpr (R > 1) some<How, R - 1>(rows, a, lda, b, b_step, blocks, tiles, c, ldc, add, stream);
    return;
  }
  constexpr int wide = R <= 2 ? 4 : R * 2 <= kRows ? 2 : 1;  // few rows: more blocks are more sums at a time
  int64_t n = 0;
  for (; n + wide <= blocks; n += wide)
    fixed<How, R, wide>(a, lda, b + n * b_step, b_step, tiles, c + n * kBlock, ldc, add, stream);
  for (; n < blocks; ++n) fixed<How, R, 1>(a, lda, b + n * b_step, b_step, tiles, c + n * kBlock, ldc, add, stream);
}

template <class How>
void every(const typename How::type* a, int64_t lda, int64_t rows, const typename How::type* b, int64_t b_step,
           int64_t blocks, int64_t inputs, float* c, int64_t ldc, bool add, bool stream) {
  constexpr int depth = Packed<typename How::type>::depth;
  const int64_t tiles = (inputs + depth - 1) / depth;
  for (int64_t r = 0; r < rows; r += kRows)
    some<How, kRows>(rows - r < kRows ? rows - r : kRows, a + r * lda, lda, b, b_step, blocks, tiles, c + r * ldc, ldc,
                     add, stream);
}

}  // namespace

Kind best_kind() {
  if (amx_here()) return Kind::amx;
#if defined(__AVX512BF16__)
  return Kind::avx512_bf16;
#else
  return Kind::vector;
#endif
}

Kind kind() { return chosen; }

bool use_kind(Kind kind) {
  if (kind > best_kind()) return false;
  chosen = kind;
  return true;
}

PanelScope::PanelScope() : amx_(chosen == Kind::amx) {}
PanelScope::~PanelScope() {
  if (amx_) amx_release();
}

void panel(const float* a, int64_t lda, int64_t rows, const float* b, int64_t b_step, int64_t blocks, int64_t inputs,
           float* c, int64_t ldc, bool add, bool stream) {
  every<Single>(a, lda, rows, b, b_step, blocks, inputs, c, ldc, add, stream);
}

void panel(const bf16* a, int64_t lda, int64_t rows, const bf16* b, int64_t b_step, int64_t blocks, int64_t inputs,
           float* c, int64_t ldc, bool add, bool stream) {
  if (chosen == Kind::amx) {
    amx_panel(a, lda, rows, b, b_step, blocks, inputs, c, ldc, add, stream);
#if defined(__AVX512BF16__)
  } else if (chosen == Kind::avx512_bf16) {
    every<Dots>(a, lda, rows, b, b_step, blocks, inputs, c, ldc, add, stream);
#endif
  } else {
    every<Pairs>(a, lda, rows, b, b_step, blocks, inputs, c, ldc, add, stream);
  }
}

}  // namespace enginebay
