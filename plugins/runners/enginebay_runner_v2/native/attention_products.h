// Scores and weighted values straight from packed blocks (attention_layout.h): products like `panel`, but of parts that
// do not lie together.
//
// Each number is a sum over dimensions or tokens in rising order, whatever the rows beside it, on one kind of product.
#pragma once
#include "kernels.h"

namespace enginebay {

// Once per thread and parallel region, around these products.
class ProductScope {
 public:
  ProductScope() = default;
  ~ProductScope();
  ProductScope(const ProductScope&) = delete;
};

// What is read next, while a product reads its parts: `count` pieces, and of each `lines` cache lines at a time.
struct Ahead {
  const bf16* const* at = nullptr;
  int64_t count = 0, lines = 0;
  void bring(int64_t piece, int64_t time) const {
    if (piece >= count) return;
    const bf16* const from = at[piece] + time * lines * 32;
    for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(from + i * 32, 0, 3);
  }
};

// Where parts of keys and values lie: 16 tokens of keys, or 16 dimensions of values. A part is a sum over `steps` of
// `pairs` inputs each, [pairs][16][2].
struct KeyParts {
  const bf16* const* groups;
  int64_t parts, steps;
  Ahead next;
  static constexpr int64_t pairs = 16;
  const bf16* operator()(int64_t part, int64_t step) const { return groups[part] + step * 512; }
  void ahead(int64_t part, int64_t step) const { next.bring(part, step); }
};
struct ValueParts {
  const bf16* const* units;
  int64_t parts, steps, pairs;  // 8 or 16 pairs of tokens
  Ahead next;
  const bf16* operator()(int64_t part, int64_t step) const { return units[step] + part * pairs * 32; }
  void ahead(int64_t part, int64_t step) const {
    if (pairs == 8) return next.bring(step, part);
    next.bring(2 * step, part);
    next.bring(2 * step + 1, part);
  }
};

// scores [rows, 16 parts] = queries [rows, inputs] times keys, `ld` floats from row to row.
void packed_scores(const bf16* queries, int64_t rows, const KeyParts& keys, float* scores, int64_t ld);

// out [rows, 16 parts] = weights [rows, inputs] times values, `ld` weights from row to row.
void packed_values(const bf16* weights, int64_t ld, int64_t rows, const ValueParts& values, float* out);

// The same on AMX, where amx_here().
void amx_scores(const bf16* queries, int64_t rows, const KeyParts& keys, float* scores, int64_t ld);
void amx_values(const bf16* weights, int64_t ld, int64_t rows, const ValueParts& values, float* out);
void amx_leave();

// The same for up to 16 rows in pieces, between which something else is computed: tiles work meanwhile. Of several such
// products one is at work at a time. All of a thread's have values with the same number of pairs (amx_pairs).
template <class Parts>
class AmxProduct {
 public:
  AmxProduct() = default;
  // c [rows, 16 parts] with `ldc` numbers from row to row = a [rows, inputs], with `lda`, times the parts.
  AmxProduct(const bf16* a, int64_t lda, int64_t rows, const Parts& parts, float* c, int64_t ldc)
      : a_(a), lda_(lda), rows_(rows), parts_(parts), c_(c), ldc_(ldc) {}
  bool some();  // a piece, where there is one left
  void rest() {
    while (some()) {
    }
  }

 private:
  static constexpr int64_t kSteps = 1;  // of a piece: about as long as the softmax of a row
  const bf16* a_ = nullptr;
  int64_t lda_ = 0, rows_ = 0;
  Parts parts_{};
  float* c_ = nullptr;
  int64_t ldc_ = 0, part_ = 0, step_ = 0;
};
void amx_pairs(int64_t pairs);

}  // namespace enginebay
