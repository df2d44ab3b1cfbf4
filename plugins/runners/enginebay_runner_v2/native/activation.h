// A gate's activation, in float32.
#pragma once
#include <cmath>

#include "attention_softmax.h"
#include "kernels.h"

namespace enginebay {

inline v16 gelu(v16 x) {  // by erfc, which keeps its digits where the result is small
  for (int i = 0; i < 16; ++i) x[i] = 0.5f * x[i] * std::erfc(-x[i] * 0.70710678118654752f);
  return x;
}

// 1 / (1 + e^-x). For bfloat16 by fewer instructions, and as exact where |x| is small: a coarser one (3e-6) rounded one
// gate in 7000 to its other neighbour, and a model answered otherwise than in float32 sooner.
template <class T>
inline v16 logistic(v16 x) {
#if defined(__AVX512F__)
  if (sizeof(T) == 2) return splat(1.0f) / (power<float>(x, splat(-kLog2e), v16{}) + 1.0f);
#endif
  return sigmoid(x);
}

template <class T, Activation activation>
inline v16 activated(v16 x) {
  if (activation == Activation::silu) return x * logistic<T>(x);
  if (activation == Activation::gelu_tanh)  // 0.5 (1 + tanh u) = sigmoid(2u)
    return x * logistic<T>((x + x * x * x * 0.044715f) * 1.5957691216057308f);
  return gelu(x);
}

}  // namespace enginebay
