// The three ways to sums of int8 products: AMX tiles, VNNI dot products, plain vectors. All are exact.
#include "amx.h"
#include "int8.h"
#include "panel.h"

#define INLINE inline __attribute__((always_inline))  // sums must stay in registers

namespace enginebay {
namespace {

inline void fetch(const int8_t* b, bool stream) {
  if (!stream) return;
  for (int line = 0; line < 16; ++line) __builtin_prefetch(b + 4096 + line * 64);
}

#if defined(__AMX_INT8__) && defined(__AMX_TILE__) && defined(__linux__)
constexpr bool kAmx = true;

// 17 to 32 rows and one block.
void tall(const int8_t* a, int64_t lda, const int8_t* b, int64_t tiles, int32_t* c, int64_t ldc, bool stream) {
  const int64_t out = ldc * 4;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t tile = 0; tile < tiles; ++tile, a += kInt8Depth, b += 2048) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, lda);
    fetch(b, stream);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + 1024, 64);
    _tile_dpbssd(1, 4, 7);
    fetch(b + 1024, stream);
    _tile_loadd(5, a + 16 * lda, lda);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, c, out);
  _tile_stored(1, c + 16, out);
  _tile_stored(2, c + 16 * ldc, out);
  _tile_stored(3, c + 16 * ldc + 16, out);
}

// Up to 16 rows and two blocks, or one.
template <bool both>
void flat(const int8_t* a, int64_t lda, const int8_t* b, int64_t b_step, int64_t tiles, int32_t* c, int64_t ldc,
          bool stream) {
  const int64_t out = ldc * 4;
  _tile_zero(0);
  _tile_zero(1);
  if (both) _tile_zero(2);
  if (both) _tile_zero(3);
  for (int64_t tile = 0; tile < tiles; ++tile, a += kInt8Depth, b += 2048) {
    _tile_loadd(4, a, lda);
    _tile_loadd(6, b, 64);
    fetch(b, stream);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + 1024, 64);
    fetch(b + 1024, stream);
    _tile_dpbssd(1, 4, 7);
    if (both) {
      _tile_loadd(5, b + b_step, 64);
      fetch(b + b_step, stream);
      _tile_dpbssd(2, 4, 5);
      _tile_loadd(6, b + b_step + 1024, 64);
      fetch(b + b_step + 1024, stream);
      _tile_dpbssd(3, 4, 6);
    }
  }
  _tile_stored(0, c, out);
  _tile_stored(1, c + 16, out);
  if (both) _tile_stored(2, c + 32, out);
  if (both) _tile_stored(3, c + 48, out);
}

void by_tiles(const int8_t* x, int64_t step, int64_t rows, const int8_t* b, int64_t b_step, int64_t blocks,
              int64_t tiles, int32_t* sums, bool stream) {
  const int64_t ldc = blocks * kBlock;
  int64_t n = 0;
  if (rows > 16) {
    amx_configure(16, int(rows - 16));
    for (; n < blocks; ++n) tall(x, step, b + n * b_step, tiles, sums + n * kBlock, ldc, stream);
    return;
  }
  amx_configure(int(rows), 0);
  for (; n + 2 <= blocks; n += 2)
    flat<true>(x, step, b + n * b_step, b_step, tiles, sums + n * kBlock, ldc, stream);
  if (n < blocks) flat<false>(x, step, b + n * b_step, b_step, tiles, sums + n * kBlock, ldc, stream);
}
#else
constexpr bool kAmx = false;
void by_tiles(const int8_t*, int64_t, int64_t, const int8_t*, int64_t, int64_t, int64_t, int32_t*, bool) {}
#endif

#if defined(__AVX512F__)
constexpr int kRows = 12;  // 24 sums, 2 weights and a broadcast are in 32 registers
#else
constexpr int kRows = 4;
#endif

struct Plain {
  // w: four weights of each of 16 outputs; four inputs
  template <int R, int N>
  static INLINE void step(const int8_t* x, int64_t lda, const int8_t* const (&b)[N], int64_t at, i16 (&sums)[R][N]) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const i16 w = bits_of<i16>(b[n] + at * 16);
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        const i16 one = (w << (24 - 8 * p)) >> 24;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) sums[r][n] += one * int32_t(x[r * lda + at + p]);
      }
    }
  }
};

#if defined(__AVX512VNNI__)
constexpr bool kVnni = true;
struct Dots {  // the instruction takes one side without a sign
  template <int R, int N>
  static INLINE void step(const int8_t* x, int64_t lda, const int8_t* const (&b)[N], int64_t at, i16 (&sums)[R][N]) {
    __m512i w[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) w[n] = _mm512_loadu_si512(b[n] + at * 16);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512i four = _mm512_set1_epi32(bits_of<int32_t>(x + r * lda + at) ^ int32_t(0x80808080));
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] = (i16)_mm512_dpbusd_epi32((__m512i)sums[r][n], four, w[n]);
    }
  }
};
#else
constexpr bool kVnni = false;
using Dots = Plain;
#endif

template <class How, int R, int B>
void fixed(const int8_t* x, int64_t lda, const int8_t* b, int64_t b_step, int64_t tiles, int32_t* c, int64_t ldc,
           bool stream) {
  i16 sums[R][B * 2] = {};
  const int8_t* halves[B * 2];
  for (int n = 0; n < B * 2; ++n) halves[n] = b + n / 2 * b_step + n % 2 * 1024;
  for (int64_t tile = 0; tile < tiles; ++tile, x += kInt8Depth) {
    for (int n = 0; n < B * 2; ++n) fetch(halves[n], stream);
    for (int at = 0; at < kInt8Depth; at += 4) How::step(x, lda, halves, at, sums);
    for (int n = 0; n < B * 2; ++n) halves[n] += 2048;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < B * 2; ++n) std::memcpy(c + r * ldc + n * 16, &sums[r][n], 64);
}

template <class How, int R>
void some(int64_t rows, const int8_t* x, int64_t lda, const int8_t* b, int64_t b_step, int64_t blocks, int64_t tiles,
          int32_t* c, int64_t ldc, bool stream) {
  if (rows < R) {
    if constexpr (R > 1) some<How, R - 1>(rows, x, lda, b, b_step, blocks, tiles, c, ldc, stream);
    return;
  }
  constexpr int wide = R <= 2 ? 4 : R * 2 <= kRows ? 2 : 1;  // few rows: more blocks are more sums at a time
  int64_t n = 0;
  for (; n + wide <= blocks; n += wide)
    fixed<How, R, wide>(x, lda, b + n * b_step, b_step, tiles, c + n * kBlock, ldc, stream);
  for (; n < blocks; ++n) fixed<How, R, 1>(x, lda, b + n * b_step, b_step, tiles, c + n * kBlock, ldc, stream);
}

template <class How>
void every(const int8_t* x, int64_t lda, int64_t rows, const int8_t* b, int64_t b_step, int64_t blocks, int64_t tiles,
           int32_t* c, bool stream) {
  const int64_t ldc = blocks * kBlock;
  for (int64_t r = 0; r < rows; r += kRows)
    some<How, kRows>(rows - r < kRows ? rows - r : kRows, x + r * lda, lda, b, b_step, blocks, tiles, c + r * ldc, ldc,
                     stream && r == 0);
}

}  // namespace

bool int8_panel(const int8_t* x, int64_t step, int64_t rows, const int8_t* b, int64_t b_step, int64_t blocks,
                int64_t tiles, int32_t* sums, bool stream) {
  if (kAmx && kind() == Kind::amx) {
    by_tiles(x, step, rows, b, b_step, blocks, tiles, sums, stream);
    return false;
  }
  // a processor may have VNNI and no bfloat16: there the least kind is the best one
  if (kVnni && (kind() != Kind::vector || best_kind() == Kind::vector)) {
    every<Dots>(x, step, rows, b, b_step, blocks, tiles, sums, stream);
    return true;
  }
  every<Plain>(x, step, rows, b, b_step, blocks, tiles, sums, stream);
  return false;
}

}  // namespace enginebay
