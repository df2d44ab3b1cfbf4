#include "attention_products.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#include <immintrin.h>

#include <initializer_list>

namespace enginebay {
namespace {

// Tiles 0 to 3 hold sums, 4 rows of queries and 6 keys, 5 rows of weights and 7 values: one configuration for both
// products, as a change of it empties the tiles' pipeline.
struct alignas(64) Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

thread_local int configured = 0;  // rows and pairs of tokens: 0 none
thread_local int pairs = 16;

void configure(int64_t rows) {
  const int wanted = int(rows) * 64 + pairs;
  if (configured == wanted) return;
  Config config;
  for (int tile : {0, 1, 2, 3, 4, 5}) config.rows[tile] = uint8_t(rows);
  config.rows[6] = 16;
  config.rows[7] = uint8_t(pairs);
  config.bytes[5] = uint16_t(pairs * 4);
  __asm__ volatile("" : : "r"(&config) : "memory");  // the intrinsic tells the compiler of 8 bytes alone
  _tile_loadconfig(&config);
  configured = wanted;
}

// c [up to 16 rows, 16 parts] = sums over steps of a [rows, 2 pairs] times b(part, step) [pairs, 16, 2]. Tiles have
// their numbers in the instruction: hence two functions of one text.
#define STEP(SUM, ROWS, PART, N)  \
  _tile_loadd(PART, b(N, s), 64); \
  b.ahead(N, s);                  \
  _tile_dpbf16ps(SUM, ROWS, PART)
#define PRODUCT(NAME, PARTS, ROWS, PART)                                           \
  void NAME(const bf16* a, int64_t lda, const PARTS& b, float* c, int64_t ldc) {   \
    const int64_t in = lda * 2, out = ldc * 4, depth = b.pairs * 2;                \
    int64_t n = 0;                                                                 \
    for (; n + 4 <= b.parts; n += 4) {                                             \
      _tile_zero(0);                                                               \
      _tile_zero(1);                                                               \
      _tile_zero(2);                                                               \
      _tile_zero(3);                                                               \
      for (int64_t s = 0; s < b.steps; ++s) {                                      \
        _tile_loadd(ROWS, a + s * depth, in);                                      \
        STEP(0, ROWS, PART, n);                                                    \
        STEP(1, ROWS, PART, n + 1);                                                \
        STEP(2, ROWS, PART, n + 2);                                                \
        STEP(3, ROWS, PART, n + 3);                                                \
      }                                                                            \
      float* const to = c + n * 16;                                                \
      _tile_stored(0, to, out);                                                    \
      _tile_stored(1, to + 16, out);                                               \
      _tile_stored(2, to + 32, out);                                               \
      _tile_stored(3, to + 48, out);                                               \
    }                                                                              \
    for (; n < b.parts; ++n) {                                                     \
      _tile_zero(0);                                                               \
      for (int64_t s = 0; s < b.steps; ++s) {                                      \
        _tile_loadd(ROWS, a + s * depth, in);                                      \
        STEP(0, ROWS, PART, n);                                                    \
      }                                                                            \
      _tile_stored(0, c + n * 16, out);                                            \
    }                                                                              \
  }
PRODUCT(product, KeyParts, 4, 6)
PRODUCT(product, ValueParts, 5, 7)
#undef PRODUCT

// The steps [s, end) of the sums of parts n to n + 3, or of part n alone. They begin at 0, and are kept after the last.
#define PIECE(NAME, PARTS, ROWS, PART)                                                                              \
  void NAME(const bf16* a, int64_t lda, const PARTS& b, float* c, int64_t ldc, int64_t n, int64_t s, int64_t end) { \
    const int64_t in = lda * 2, out = ldc * 4, depth = b.pairs * 2;                                                 \
    const bool four = n + 4 <= b.parts;                                                                             \
    float* const to = c + n * 16;                                                                                   \
    if (s == 0) {                                                                                                   \
      _tile_zero(0);                                                                                                \
      _tile_zero(1);                                                                                                \
      _tile_zero(2);                                                                                                \
      _tile_zero(3);                                                                                                \
    }                                                                                                               \
    for (; s < end; ++s) {                                                                                          \
      _tile_loadd(ROWS, a + s * depth, in);                                                                         \
      STEP(0, ROWS, PART, n);                                                                                       \
      if (!four) continue;                                                                                          \
      STEP(1, ROWS, PART, n + 1);                                                                                   \
      STEP(2, ROWS, PART, n + 2);                                                                                   \
      STEP(3, ROWS, PART, n + 3);                                                                                   \
    }                                                                                                               \
    if (end < b.steps) return;                                                                                      \
    _tile_stored(0, to, out);                                                                                       \
    if (!four) return;                                                                                              \
    _tile_stored(1, to + 16, out);                                                                                  \
    _tile_stored(2, to + 32, out);                                                                                  \
    _tile_stored(3, to + 48, out);                                                                                  \
  }
PIECE(piece, KeyParts, 4, 6)
PIECE(piece, ValueParts, 5, 7)
#undef PIECE
#undef STEP

template <class Parts>
void every(const bf16* a, int64_t lda, int64_t rows, const Parts& b, float* c, int64_t ldc) {
  for (; rows > 0; rows -= 16, a += 16 * lda, c += 16 * ldc) {
    configure(rows < 16 ? int(rows) : 16);
    product(a, lda, b, c, ldc);
  }
}

}  // namespace

void amx_scores(const bf16* queries, int64_t rows, const KeyParts& keys, float* scores, int64_t ld) {
  every(queries, keys.steps * 32, rows, keys, scores, ld);
}

void amx_values(const bf16* weights, int64_t ld, int64_t rows, const ValueParts& values, float* out) {
  pairs = int(values.pairs);
  every(weights, ld, rows, values, out, values.parts * 16);
}

void amx_pairs(int64_t count) { pairs = int(count); }

template <class Parts>
bool AmxProduct<Parts>::some() {
  if (!rows_) return false;
  configure(rows_);
  const int64_t end = step_ + kSteps < parts_.steps ? step_ + kSteps : parts_.steps;
  piece(a_, lda_, parts_, c_, ldc_, part_, step_, end);
  step_ = end;
  if (end < parts_.steps) return true;
  step_ = 0;
  part_ += part_ + 4 <= parts_.parts ? 4 : 1;
  if (part_ == parts_.parts) rows_ = 0;
  return true;
}
template class AmxProduct<KeyParts>;
template class AmxProduct<ValueParts>;

void amx_leave() {
  if (configured) _tile_release();
  configured = 0;
}

}  // namespace enginebay
#else
namespace enginebay {
void amx_scores(const bf16*, int64_t, const KeyParts&, float*, int64_t) {}
void amx_values(const bf16*, int64_t, int64_t, const ValueParts&, float*) {}
void amx_pairs(int64_t) {}
template <class Parts>
bool AmxProduct<Parts>::some() {
  return false;
}
template class AmxProduct<KeyParts>;
template class AmxProduct<ValueParts>;
void amx_leave() {}
}  // namespace enginebay
#endif
