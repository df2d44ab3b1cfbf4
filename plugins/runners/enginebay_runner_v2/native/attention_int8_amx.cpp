#include "attention_int8_products.h"

#if defined(__AMX_INT8__) && defined(__AMX_TILE__) && defined(__linux__)
#include <immintrin.h>

#include <initializer_list>

namespace enginebay {
namespace {

// Tiles 0 to 3 hold sums, 4 digits of queries and 6 keys, 5 digits of weights and 7 values.
struct alignas(64) Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

thread_local int configured = 0;  // rows and quads: 0 none
thread_local int of_keys = 16, of_values = 4;

void configure(int64_t rows) {
  const int wanted = (int(rows) * 64 + of_keys) * 64 + of_values;
  if (configured == wanted) return;
  Config config;
  for (int tile : {0, 1, 2, 3, 4, 5}) config.rows[tile] = uint8_t(rows);
  config.rows[6] = uint8_t(of_keys);
  config.rows[7] = uint8_t(of_values);
  config.bytes[4] = uint16_t(of_keys * 4);
  config.bytes[5] = uint16_t(of_values * 4);
  __asm__ volatile("" : : "r"(&config) : "memory");  // the intrinsic tells the compiler of 8 bytes alone
  _tile_loadconfig(&config);
  configured = wanted;
}

// c [up to 16 rows, 16 parts]. Tiles have their numbers in the instruction: hence two functions of one text.
#define STEP(SUM, ROWS, PART, N, ADD) \
  _tile_loadd(PART, b(N, s), 64);     \
  b.ahead();                          \
  ADD(SUM, ROWS, PART)
#define PRODUCT(NAME, DIGIT, PARTS, ROWS, PART, ADD)                                   \
  void NAME(const DIGIT* a, int64_t lda, const PARTS& b, int32_t* c, int64_t ldc) {    \
    const int64_t out = ldc * 4, depth = b.quads * 4;                                  \
    int64_t n = 0;                                                                     \
    for (; n + 4 <= b.parts; n += 4) {                                                 \
      _tile_zero(0);                                                                   \
      _tile_zero(1);                                                                   \
      _tile_zero(2);                                                                   \
      _tile_zero(3);                                                                   \
      for (int64_t s = 0; s < b.steps; ++s) {                                          \
        _tile_loadd(ROWS, a + s * depth, lda);                                         \
        STEP(0, ROWS, PART, n, ADD);                                                   \
        STEP(1, ROWS, PART, n + 1, ADD);                                               \
        STEP(2, ROWS, PART, n + 2, ADD);                                               \
        STEP(3, ROWS, PART, n + 3, ADD);                                               \
      }                                                                                \
      int32_t* const to = c + n * 16;                                                  \
      _tile_stored(0, to, out);                                                        \
      _tile_stored(1, to + 16, out);                                                   \
      _tile_stored(2, to + 32, out);                                                   \
      _tile_stored(3, to + 48, out);                                                   \
    }                                                                                  \
    for (; n < b.parts; ++n) {                                                         \
      _tile_zero(0);                                                                   \
      for (int64_t s = 0; s < b.steps; ++s) {                                          \
        _tile_loadd(ROWS, a + s * depth, lda);                                         \
        STEP(0, ROWS, PART, n, ADD);                                                   \
      }                                                                                \
      _tile_stored(0, c + n * 16, out);                                                \
    }                                                                                  \
  }
PRODUCT(tiles, int8_t, Int8Keys, 4, 6, _tile_dpbssd)
PRODUCT(tiles, uint8_t, Int8Values, 5, 7, _tile_dpbusd)
#undef PRODUCT
#undef STEP

template <class Digit, class Parts>
void every(const Digit* a, int64_t lda, int64_t rows, const Parts& b, int32_t* c, int64_t ldc) {
  for (; rows > 0; rows -= 16, a += 16 * lda, c += 16 * ldc) {
    configure(rows < 16 ? rows : 16);
    tiles(a, lda, b, c, ldc);
  }
}

}  // namespace

void int8_quads(int64_t keys, int64_t values) {
  of_keys = int(keys);
  of_values = int(values);
}

bool int8_amx(const int8_t* digits, int64_t lda, int64_t rows, const Int8Keys& keys, int32_t* sums, int64_t ldc) {
  every(digits, lda, rows, keys, sums, ldc);
  return true;
}

bool int8_amx(const uint8_t* digits, int64_t lda, int64_t rows, const Int8Values& values, int32_t* sums, int64_t ldc) {
  every(digits, lda, rows, values, sums, ldc);
  return true;
}

void int8_amx_leave() {
  if (configured) _tile_release();
  configured = 0;
}

}  // namespace enginebay
#else
namespace enginebay {
void int8_quads(int64_t, int64_t) {}
bool int8_amx(const int8_t*, int64_t, int64_t, const Int8Keys&, int32_t*, int64_t) { return false; }
bool int8_amx(const uint8_t*, int64_t, int64_t, const Int8Values&, int32_t*, int64_t) { return false; }
void int8_amx_leave() {}
}  // namespace enginebay
#endif
