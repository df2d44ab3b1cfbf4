#include "kernels.h"
#include "parallel.h"

#include <cmath>

namespace enginebay {
namespace {

constexpr int64_t kWorth = 1 << 13;  // outputs below which a fork costs more than it saves

v16 gelu(v16 x) {  // by erfc, which keeps its digits where the result is small
  for (int i = 0; i < 16; ++i) x[i] = 0.5f * x[i] * std::erfc(-x[i] * 0.70710678118654752f);
  return x;
}

v16 activated(v16 x, Activation activation) {
  switch (activation) {
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::gelu_tanh:  // 0.5 (1 + tanh u) = sigmoid(2u)
      return x * sigmoid((x + x * x * x * 0.044715f) * 1.5957691216057308f);
    default:
      return gelu(x);
  }
}

}  // namespace

template <class T>
void gated(const T* gate_up, T* out, int64_t rows, int64_t width, Activation activation, int threads) {
  const int64_t pieces = (width + 511) / 512;  // a row alone is shared among threads too
  parallel(rows * pieces, rows * width < kWorth ? 1 : threads, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t r = piece / pieces, from = piece % pieces * 512, end = from + 512 < width ? from + 512 : width;
      const T *gate = gate_up + r * 2 * width, *up = gate + width;
      for (int64_t i = from; i < end; i += 16)
        store_upto(out + r * width + i, activated(load_upto(gate + i, end - i), activation) * load_upto(up + i, end - i),
                   end - i);
    }
  });
}

template void gated(const float*, float*, int64_t, int64_t, Activation, int);
template void gated(const bf16*, bf16*, int64_t, int64_t, Activation, int);

}  // namespace enginebay
