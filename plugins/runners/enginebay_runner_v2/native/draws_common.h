// What both ways of drawing (draws.cpp, draws_sorted.cpp) share: noise, scores, and where rounding would decide.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>

#include "draws.h"
#include "simd.h"

namespace enginebay {

using u64x8 = uint64_t __attribute__((vector_size(64)));
using f64x8 = double __attribute__((vector_size(64)));
using f32x8 = float __attribute__((vector_size(32)));

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr double kClose = 1e-9;  // sums of score and noise this near to each other may come out the other way elsewhere
constexpr double kSame = 1e-11;  // the same of shares of one that were added up in double precision

template <class Word>
inline Word mixed(Word bits) {
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

// -log of the uniform number behind a token's noise; the noise is -log of this.
inline double exponential(uint64_t key, int64_t id) {
  const uint64_t bits = mixed(uint64_t(id) * kGolden + key) >> 12;
  return -std::log((double(bits) + 0.5) * 0x1p-52);
}

// What noise is added to, to the last bit as enginebay.worker.shortlists.scaled has it.
template <class T>
inline double scaled(T score, const Chance& chance) {
  return (double(score) - chance.highest) / chance.temperature;
}

// Scores i, i + 1, … less the largest; -inf where there are none left.
inline v16 differences(const float* from, int64_t left, double highest) {
  float some[16];
  if (left < 16) {
    for (int lane = 0; lane < 16; ++lane) some[lane] = lane < left ? from[lane] : -std::numeric_limits<float>::infinity();
    from = some;
  }
  return load(from) - splat(float(highest));
}
inline v16 differences(const double* from, int64_t left, double highest) {
  double some[16];
  if (left < 16) {
    for (int lane = 0; lane < 16; ++lane) some[lane] = lane < left ? from[lane] : -std::numeric_limits<double>::infinity();
    from = some;
  }
  float narrow[16];
  for (int half = 0; half < 2; ++half) {
    const f32x8 part = __builtin_convertvector(bits_of<f64x8>(from + 8 * half) - highest, f32x8);
    std::memcpy(narrow + 8 * half, &part, sizeof part);
  }
  return load(narrow);
}

inline bool any(i16 mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)mask);
#endif
  const u64x8 pairs = (u64x8)mask;
  uint64_t found = 0;
  for (int lane = 0; lane < 8; ++lane) found |= pairs[lane];
  return found;
}

// f(lane) for each lane of a mask that is set.
template <class F>
inline void each(i16 mask, const F& f) {
#if defined(__AVX512DQ__)
  for (uint32_t left = _mm512_movepi32_mask((__m512i)mask); left; left &= left - 1) f(__builtin_ctz(left));
#else
  for (int lane = 0; lane < 16; ++lane)
    if (mask[lane]) f(lane);
#endif
}

}  // namespace enginebay
