#include "kernels.h"
#include "parallel.h"

#include <cmath>

namespace enginebay {
namespace {

constexpr int64_t kWorth = 1 << 14;  // elements below which a fork costs more than it saves

template <class T>
void one(const T* x, const T* residual, const T* weight, T* total, T* out, int64_t width, float eps, Style style) {
  v16 squares[4] = {};
  for (int64_t i = 0; i < width; i += 16) {
    v16 v = load_upto(x + i, width - i);
    if (residual) {
      v = rounded<T>(v + load_upto(residual + i, width - i));
      store_upto(total + i, v, width - i);
    }
    squares[i / 16 % 4] += v * v;
  }
  const T* from = residual ? total : x;
  const float mean = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / float(width);
  const v16 inverse = splat(1.0f / std::sqrt(mean + eps));
  for (int64_t i = 0; i < width; i += 16) {
    v16 v = load_upto(from + i, width - i) * inverse;
    v16 w = load_upto(weight + i, width - i);
    if (style == Style::llama) v = rounded<T>(v);
    if (style == Style::gemma) w = w + 1.0f;
    store_upto(out + i, v * w, width - i);
  }
}

}  // namespace

template <class T>
void rms_norm(const T* x, const T* residual, const T* weight, T* total, T* out, int64_t rows, int64_t width, float eps,
              Style style, int threads) {
  parallel(rows, rows * width < kWorth ? 1 : threads, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const int64_t at = r * width;
      one(x + at, residual ? residual + at : nullptr, weight, total ? total + at : nullptr, out + at, width, eps, style);
    }
  });
}

template void rms_norm(const float*, const float*, const float*, float*, float*, int64_t, int64_t, float, Style, int);
template void rms_norm(const bf16*, const bf16*, const bf16*, bf16*, bf16*, int64_t, int64_t, float, Style, int);

}  // namespace enginebay
