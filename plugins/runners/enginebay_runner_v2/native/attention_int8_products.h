// Scores and weighted values from blocks in int8: sums of whole numbers, exact, so that every kind of product, any
// number of rows and any order give the same bits.
//
// Queries and weights become whole numbers too, of two digits: a row is 2 rows of digits, high ones first, and what is
// added up of them is 128 or 256 times the first plus the second. So a query is rounded to one part in 16256 of its
// largest number, a weight to one in 65535: much finer than the keys and values.
#pragma once
#include "attention_products.h"

namespace enginebay {

// Asks for what is read next, some cache lines at a time, evenly while other things are computed: more at once wait for
// each other.
struct Feeder {
  const int8_t* const* at = nullptr;
  int64_t count = 0, lines = 0, piece = 0, line = 0;  // pieces of so many lines; the next one
  int64_t left() const { return (count - piece) * lines - line; }
  void some(int64_t n) {
    for (; n > 0 && piece < count; --n) {
      __builtin_prefetch(at[piece] + line * 64, 0, 2);
      if (++line < lines) continue;
      line = 0;
      ++piece;
    }
  }
};

// Groups of 16 tokens. A part is a sum over `steps` of `quads` words of 4, [quads][16][4].
struct Int8Keys {  // a part is a group
  const int8_t* const* groups;
  int64_t parts, steps, quads;
  Feeder* feeder;
  int64_t lines;  // to ask for with each step of a part
  static constexpr bool keys = true;
  const int8_t* operator()(int64_t part, int64_t step) const { return groups[part] + step * quads * 64; }
  void ahead() const { feeder->some(lines); }
};
struct Int8Values {  // a part is 16 dimensions
  const int8_t* const* units;  // groups, or units of several
  int64_t parts, steps, quads;
  Feeder* feeder;
  int64_t lines;
  static constexpr bool keys = false;
  const int8_t* operator()(int64_t part, int64_t step) const { return units[step] + part * quads * 64; }
  void ahead() const { feeder->some(lines); }
};

// Once per thread and parallel region, around these products.
class Int8Scope {
 public:
  Int8Scope() = default;
  ~Int8Scope();
  Int8Scope(const Int8Scope&) = delete;
};

// The quads of a thread's next products: one configuration of the tiles for both kinds, as a change empties them.
void int8_quads(int64_t keys, int64_t values);

// sums [rows, 16 parts] of digits [rows, inputs], `lda` and `ldc` from row to row: those of queries have a sign.
void int8_scores(const int8_t* digits, int64_t lda, int64_t rows, const Int8Keys& keys, int32_t* sums, int64_t ldc);
void int8_values(const uint8_t* digits, int64_t lda, int64_t rows, const Int8Values& values, int32_t* sums, int64_t ldc);

// The same on AMX; false where there is none.
bool int8_amx(const int8_t* digits, int64_t lda, int64_t rows, const Int8Keys& keys, int32_t* sums, int64_t ldc);
bool int8_amx(const uint8_t* digits, int64_t lda, int64_t rows, const Int8Values& values, int32_t* sums, int64_t ldc);
void int8_amx_leave();

}  // namespace enginebay
