#include "kernels.h"
#include "parallel.h"

#include <cmath>

namespace enginebay {
namespace {

constexpr int64_t kWorth = 1 << 14;  // elements below which a fork costs more than it saves

template <class T, Style style>
inline v16 normed(v16 v, v16 weight, v16 inverse) {
  v = v * inverse;
  if (style == Style::llama) v = rounded<T>(v);
  if (style == Style::gemma) weight = weight + 1.0f;
  return v * weight;
}

// x, or the sum with the residual, which is kept; its squares are added to `squares`.
template <class T, bool summed>
inline void take(const T* x, const T* residual, T* total, v16& first, v16& second) {
  v16 a = load(x), b = load(x + 16);
  if (summed) {
    a = rounded<T>(a + load(residual));
    b = rounded<T>(b + load(residual + 16));
    store_pair(total, a, b);
  }
  first += a * a;
  second += b * b;
}

template <class T, Style style, bool summed>
void one(const T* x, const T* residual, const T* weight, T* total, T* out, int64_t width, float eps) {
  v16 a{}, b{}, c{}, d{};  // squares of vectors 0, 1, 2 and 3 of each 64
  int64_t i = 0;
  for (; i + 64 <= width; i += 64) {
    take<T, summed>(x + i, residual + i, total + i, a, b);
    take<T, summed>(x + i + 32, residual + i + 32, total + i + 32, c, d);
  }
  for (v16* squares[4] = {&a, &b, &c, &d}; i < width; i += 16) {
    v16 v = load_upto(x + i, width - i);
    if (summed) {
      v = rounded<T>(v + load_upto(residual + i, width - i));
      store_upto(total + i, v, width - i);
    }
    *squares[i / 16 % 4] += v * v;
  }
  const T* const from = summed ? total : x;
  const float mean = sum((a + b) + (c + d)) / float(width);
  const v16 inverse = splat(1.0f / std::sqrt(mean + eps));
  for (i = 0; i + 32 <= width; i += 32)
    store_pair(out + i, normed<T, style>(load(from + i), load(weight + i), inverse),
               normed<T, style>(load(from + i + 16), load(weight + i + 16), inverse));
  for (; i < width; i += 16) {
    const int64_t left = width - i;
    store_upto(out + i, normed<T, style>(load_upto(from + i, left), load_upto(weight + i, left), inverse), left);
  }
}

template <class T, bool summed>
auto kernel(Style style) {
  return style == Style::llama   ? one<T, Style::llama, summed>
         : style == Style::gemma ? one<T, Style::gemma, summed>
                                 : one<T, Style::wide, summed>;
}

}  // namespace

template <class T>
void rms_norm(const T* x, const T* residual, const T* weight, T* total, T* out, int64_t rows, int64_t width, float eps,
              Style style, int threads) {
  const auto row = residual ? kernel<T, true>(style) : kernel<T, false>(style);
  parallel(rows, rows * width < kWorth ? 1 : threads, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const int64_t at = r * width;
      row(x + at, residual ? residual + at : nullptr, weight, total ? total + at : nullptr, out + at, width, eps);
    }
  });
}

template void rms_norm(const float*, const float*, const float*, float*, float*, int64_t, int64_t, float, Style, int);
template void rms_norm(const bf16*, const bf16*, const bf16*, bf16*, bf16*, int64_t, int64_t, float, Style, int);

}  // namespace enginebay
