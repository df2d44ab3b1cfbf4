#include "activation.h"
#include "parallel.h"

namespace enginebay {
namespace {

constexpr int64_t kWorth = 1 << 13;  // outputs below which a fork costs more than it saves
constexpr int64_t kPiece = 512;      // outputs of a row that a thread takes: a row alone is shared among threads too

template <class T, Activation activation>
void piece(const T* gate, const T* up, T* out, int64_t count) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    store_pair(out + i, activated<T, activation>(load(gate + i)) * load(up + i),
               activated<T, activation>(load(gate + i + 16)) * load(up + i + 16));
  for (; i < count; i += 16)
    store_upto(out + i, activated<T, activation>(load_upto(gate + i, count - i)) * load_upto(up + i, count - i),
               count - i);
}

}  // namespace

template <class T>
void gated(const T* gate_up, T* out, int64_t rows, int64_t width, Activation activation, int threads) {
  const auto one = activation == Activation::silu        ? piece<T, Activation::silu>
                   : activation == Activation::gelu_tanh ? piece<T, Activation::gelu_tanh>
                                                         : piece<T, Activation::gelu>;
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  parallel(rows * pieces, rows * width < kWorth ? 1 : threads, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t r = p / pieces, from = p % pieces * kPiece;
      const T* const gate = gate_up + r * 2 * width + from;
      one(gate, gate + width, out + r * width + from, from + kPiece < width ? kPiece : width - from);
    }
  });
}

template void gated(const float*, float*, int64_t, int64_t, Activation, int);
template void gated(const bf16*, bf16*, int64_t, int64_t, Activation, int);

}  // namespace enginebay
