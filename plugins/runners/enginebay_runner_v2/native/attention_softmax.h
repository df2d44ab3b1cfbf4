// The softmax of one row of scores over one segment, in two passes.
#pragma once
#include "simd.h"

namespace enginebay {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504088896341f;

// 2^(x c - m), 0 below 2^-126; NaN stays NaN. To 1e-7 for float, to 3e-6 for bfloat16. m is finite or not a number.
template <class T>
inline v16 power(v16 x, v16 c, v16 m) {
#if defined(__AVX512F__)
  const __m512 t = _mm512_fmsub_ps((__m512)x, (__m512)c, (__m512)m);
  const __m512 magic = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const __m512 n = _mm512_sub_ps(_mm512_add_ps(t, magic), magic), r = _mm512_sub_ps(t, n);
  const auto step = [&](__m512 p, float next) { return _mm512_fmadd_ps(p, r, _mm512_set1_ps(next)); };
  __m512 p;
  if (sizeof(T) == 4) {
    p = step(_mm512_set1_ps(1.5353361e-4f), 1.33988744e-3f);
    p = step(p, 9.6184374e-3f);
    p = step(p, 5.5503324e-2f);
    p = step(p, 2.40226477e-1f);
    p = step(p, 6.93147182e-1f);
  } else {
    p = step(_mm512_set1_ps(9.5828511e-3f), 5.5906430e-2f);
    p = step(p, 2.40240991e-1f);
    p = step(p, 6.93124175e-1f);
  }
  p = step(p, 1.0f);
  return (v16)_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p, n);
#else
  return exp((x * c - m) * 0.69314718055994531f);
#endif
}

inline v16 larger(v16 a, v16 b) {  // b where either is not a number
#if defined(__AVX512F__)
  return (v16)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return choose(a > b, a, b);
#endif
}

// What the weights of tokens are multiplied with, and the largest product, or one that is not finite.
struct Weighing {
  const float* by;
  float most;
};

inline void clear(float* scores) { store(scores, splat(kNone)); }

// One row of `groups` (even) times 16 scores, of which tokens [low, high) are seen: their largest, scaled and capped,
// into `peak`, e^(score - peak) of each into `weights` (0 where unseen), the sum of these, by lane, into `total`. A
// score that is not a number is passed over in `peak`, and its weight and so the sum are not numbers. `weights` may be
// `scores`. T: how exact. With `weighing` weights, but not their sum, are multiplied.
template <class T, class W>
void softmax(float* scores, int64_t groups, int64_t low, int64_t high, float scale, float softcap, float* peak,
             float* total, W* weights, Weighing* weighing = nullptr) {
  if (softcap != 0.0f || !(scale > 0.0f)) {
    for (int64_t i = 0; i < groups; ++i) {
      const v16 s = load(scores + i * 16) * scale;
      store(scores + i * 16, softcap != 0.0f ? tanh(s / softcap) * softcap : s);
    }
    scale = 1.0f;
  }
  const v16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto mask = [&](int64_t i) {
    const v16 at = lanes + float(i * 16);
    const i16 seen = (at >= splat(float(low))) & (at < splat(float(high)));
    store(scores + i * 16, choose(seen, load(scores + i * 16), splat(kNone)));
  };
  if (low < 0) low = 0;
  if (high > groups * 16) high = groups * 16;
  const int64_t before = low / 16 < groups ? low / 16 : groups;
  int64_t after = high < 0 ? 0 : (high + 15) / 16;
  if (after < before) after = before;
  if (before < after && low % 16) mask(before);
  if (before < after && high % 16) mask(after - 1);
  v16 best = splat(kNone), other = best;
  int64_t i = before;
  for (; i + 2 <= after; i += 2) {
    best = larger(load(scores + i * 16), best);
    other = larger(load(scores + i * 16 + 16), other);
  }
  if (i < after) best = larger(load(scores + i * 16), best);
  const float top = largest(larger(best, other));
  const float c = scale * kLog2e;
  const v16 factor = splat(c), least = splat(top == kNone ? 0.0f : top * c);
  i16 most = {};
  v16 even = {}, odd = {};  // of groups: these two, whatever is seen
  const bool any = before < after;
  const int64_t begin = any ? before / 2 * 2 : groups, end = any ? (after + 1) / 2 * 2 : groups;
  if (any && before % 2) clear(scores + begin * 16);
  if (any && after % 2) clear(scores + after * 16);
  for (i = 0; i < begin; i += 2) store_pair(weights + i * 16, v16{}, v16{});
  for (; i < end; i += 2) {
    const v16 first = power<T>(load(scores + i * 16), factor, least);
    const v16 second = power<T>(load(scores + i * 16 + 16), factor, least);
    even += first;
    odd += second;
    if (!weighing) {
      store_pair(weights + i * 16, first, second);
      continue;
    }
    const v16 one = first * load(weighing->by + i * 16), next = second * load(weighing->by + i * 16 + 16);
    most = larger_bits(larger_bits(most, one), next);
    store_pair(weights + i * 16, one, next);
  }
  for (; i < groups; i += 2) store_pair(weights + i * 16, v16{}, v16{});
  if (weighing) weighing->most = largest_of(most);
  *peak = top * scale;
  store(total, even + odd);
}

}  // namespace enginebay
