// c (+)= a · b for a few rows and whole blocks of a packed weight: the one product that linear layers and attention use.
//
// Each number is a sum over inputs in rising order, whatever the rows and blocks beside it: a row's result depends on
// that row alone. A violating change splits the inputs, or chooses by the number of rows among kinds that add differently.
#pragma once
#include <cstdint>

#include "simd.h"

namespace enginebay {

constexpr int kBlock = 32;  // outputs of a block

template <class T>
struct Packed;
template <>
struct Packed<float> {
  static constexpr int depth = 1;
};
template <>
struct Packed<bf16> {
  static constexpr int depth = 32;
};
template <class T>
constexpr int64_t padded(int64_t inputs) {
  return (inputs + Packed<T>::depth - 1) / Packed<T>::depth * Packed<T>::depth;
}

// How bfloat16 products are computed: with which instructions. They differ in the last bits.
enum class Kind { vector = 0, avx512_bf16 = 1, amx = 2 };
Kind best_kind();         // what this processor and this build have
Kind kind();              // what is used
bool use_kind(Kind kind);  // for tests and comparisons, between steps; false: not here

// Once per thread and parallel region, around its panels.
class PanelScope {
 public:
  PanelScope();
  ~PanelScope();
  PanelScope(const PanelScope&) = delete;

 private:
  bool amx_;
};

// a: [rows, depth-padded inputs] with `lda` elements from row to row; b: `blocks` blocks, `b_step` elements apart;
// c: [rows, blocks * 32] with `ldc` floats from row to row, added to when `add`. `stream`: b comes from memory.
void panel(const float* a, int64_t lda, int64_t rows, const float* b, int64_t b_step, int64_t blocks, int64_t inputs,
           float* c, int64_t ldc, bool add, bool stream);
void panel(const bf16* a, int64_t lda, int64_t rows, const bf16* b, int64_t b_step, int64_t blocks, int64_t inputs,
           float* c, int64_t ldc, bool add, bool stream);

}  // namespace enginebay
