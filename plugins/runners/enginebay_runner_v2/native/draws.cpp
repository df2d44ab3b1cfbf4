// A race: tokens of one row in rising order, each compared with the best one so far, nearly all by a bound alone.
//
// The largest score + noise is the smallest -log(u) / exp(score). 1 - u is never above -log(u), and cheaper; so a token
// with 1 - u > best * exp(score) has lost. The others are computed in double precision, and, where they would lead, held
// to the filter. A nucleus is not sorted for that: a token is in it when those above it do not reach top_p.
#include <utility>
#include <vector>

#include "draws_common.h"
#include "draws_sorted.h"

namespace enginebay {
namespace {

constexpr float kMargin = 1.001f;      // for all that single precision rounds
constexpr double kShareError = 1e-4;   // of a sum of weights in single precision

template <class T>
struct Race {
  Race(const T* scores, int64_t width, const Chance& chance)
      : scores(scores), width(width), chance(chance), inverse(float(1.0 / chance.temperature)), winner(chance.best) {
    const double first = exponential(chance.key, chance.best);
    noisy = -std::log(first);
    limit = float(first) * kMargin;
  }

  v16 hot(int64_t i) const { return differences(scores + i, width - i, chance.highest) * splat(inverse); }

  // A token that the bound lets pass.
  template <class Kept>
  void consider(int64_t id, const Kept& kept) {
    if (id == chance.best) return;
    const double waited = exponential(chance.key, id), score = scaled(scores[id], chance), sum = score - std::log(waited);
    if (!(sum > noisy - kClose) || !kept(id)) return;
    if (sum < noisy + kClose) sure = false;
    if (sum < noisy) return;
    winner = id;
    noisy = sum;
    limit = float(std::exp(-sum)) * kMargin;
  }

  int64_t result() const { return sure ? winner : kUnsure; }

  const T* scores;
  int64_t width;
  const Chance& chance;
  float inverse;
  int64_t winner;
  double noisy;
  float limit;
  bool sure = true;
};

// How far the uniform numbers of 16 tokens are from 1, and up to 2^-53 less; of id * kGolden + key of each.
v16 missing(u64x8 low, u64x8 high) {
  float found[16];
  const u64x8 halves[] = {low, high};
  for (int half = 0; half < 2; ++half) {
    const f32x8 wide = __builtin_convertvector(~mixed(halves[half]) >> 12, f32x8);
    std::memcpy(found + 8 * half, &wide, sizeof wide);
  }
  return load(found) * splat(0x1p-52f / kMargin);
}

// No less than e^x, and at most 7 % more: between two powers of 2 the chord is above the curve.
v16 above_exp(v16 x) {
  const v16 bounded = choose(x < splat(-87.0f), splat(-87.0f), x);
  const i16 bits = __builtin_convertvector(bounded * 12102203.2f + 1065354000.0f, i16);
  return bits_of<v16>(&bits);
}

template <class T>
int64_t among_all(const T* scores, int64_t width, const Chance& chance) {
  Race<T> race(scores, width, chance);
  u64x8 low = u64x8{0, 1, 2, 3, 4, 5, 6, 7} * kGolden + chance.key, high = low + 8 * kGolden;
  for (int64_t i = 0; i < width; i += 16, low += 16 * kGolden, high += 16 * kGolden) {
    const i16 may = missing(low, high) <= above_exp(race.hot(i)) * race.limit;
    if (any(may))
      each(may, [&](int lane) {
        if (i + lane < width) race.consider(i + lane, [](int64_t) { return true; });
      });
  }
  return race.result();
}

// Those with a hot score of at least `least`: ids, rising, their scores and weights e^hot; 16 that weigh nothing follow.
template <class T>
struct Likely {
  Likely(const Race<T>& race, float least) : ids(race.width + 16) {
    for (int64_t i = 0; i < race.width; i += 16) {
      const i16 reached = race.hot(i) >= splat(least);
      if (!any(reached)) continue;
      each(reached, [&](int lane) { ids[count++] = int32_t(i + lane); });
      while (count && ids[count - 1] >= race.width) --count;
    }
    scores.resize(count + 16, -std::numeric_limits<T>::infinity());
    weights.resize(count + 16);
    for (int64_t i = 0; i < count; ++i) scores[i] = race.scores[ids[i]];
    for (int64_t i = 0; i < count; i += 16)
      store(&weights[i], exp(differences(&scores[i], 16, race.chance.highest) * splat(race.inverse)));
  }
  int64_t count = 0;
  std::vector<int32_t> ids;
  std::vector<T> scores;
  std::vector<float> weights;
};

// kept(i): whether the filter leaves the token at place i of the likely ones.
template <class T, class Kept>
int64_t among(Race<T>& race, const Likely<T>& likely, const Kept& kept) {
  using i32x8 = int32_t __attribute__((vector_size(32)));
  for (int64_t i = 0; i < likely.count; i += 16) {
    u64x8 bits[2];
    for (int half = 0; half < 2; ++half)
      bits[half] = __builtin_convertvector(bits_of<i32x8>(&likely.ids[i + 8 * half]), u64x8) * kGolden + race.chance.key;
    const i16 may = missing(bits[0], bits[1]) <= load(&likely.weights[i]) * race.limit;
    if (!any(may)) continue;
    each(may, [&](int lane) {
      if (i + lane < likely.count) race.consider(likely.ids[i + lane], [&](int64_t) { return kept(i + lane); });
    });
  }
  return race.result();
}

template <class T>
int64_t among_probable(const T* scores, int64_t width, const Chance& chance) {
  Race<T> race(scores, width, chance);
  const double least = std::log(chance.min_p);
  const Likely<T> likely(race, float(least * (1 + 1e-5) - 1e-5));
  return among(race, likely, [&](int64_t i) {
    const double score = scaled(likely.scores[i], chance);
    if (score == 0) return true;
    if (std::abs(score - least) < kSame * (1 - least)) race.sure = false;
    return score >= least;
  });
}

constexpr int64_t kPiece = 1024;  // weights that single precision adds up
constexpr float kSteps[] = {-3, -5, -7, -10};

// The sum of all weights, and a hot score that the whole nucleus reaches.
template <class T>
std::pair<double, float> looked_through(const Race<T>& race) {
  double total = 0, reaching[4] = {};
  for (int64_t from = 0; from < race.width; from += kPiece) {
    v16 all{}, some[4] = {};
    for (int64_t i = from; i < from + kPiece && i < race.width; i += 16) {
      const v16 hot = race.hot(i), weights = exp(hot);
      all = all + weights;
      for (int step = 0; step < 4; ++step) some[step] = some[step] + choose(hot >= splat(kSteps[step]), weights, v16{});
    }
    total += sum(all);
    for (int step = 0; step < 4; ++step) reaching[step] += sum(some[step]);
  }
  for (int step = 0; step < 4; ++step)
    if (reaching[step] > (race.chance.top_p + 2 * kShareError) * total) return {total, kSteps[step]};
  // the last one and those below it have more than 1 - top_p of the total, and none has more than it has
  return {total, float(std::log((1 - race.chance.top_p) * total / double(race.width)) - 1e-2)};
}

template <class T>
int64_t in_nucleus(const T* scores, int64_t width, const Chance& chance) {
  Race<T> race(scores, width, chance);
  const auto [total, least] = looked_through(race);
  const Likely<T> likely(race, least);
  T inside = T(chance.highest), outside = -std::numeric_limits<T>::infinity();
  return among(race, likely, [&, total = total](int64_t place) {
    const T own = likely.scores[place];
    if (own > inside) return true;
    if (own < outside) return false;
    // scores that differ by less may be equal once they are scaled, and then their ids count
    const double near = 1e-15 * (std::abs(chance.highest) + std::abs(double(own))) + 1e-290 * chance.temperature;
    const T high = T(double(own) + near), low = T(double(own) - near);
    double above = 0;
    int32_t alike = 0;
    for (int64_t from = 0; from < likely.count; from += kPiece) {
      float piece[16] = {};
      for (int64_t i = from; i < from + kPiece && i < likely.count; i += 16)
        for (int lane = 0; lane < 16; ++lane) {
          const T score = likely.scores[i + lane];
          piece[lane] += (score > own) | ((score == own) & (i + lane < place)) ? likely.weights[i + lane] : 0.0f;
          alike += (score != own) & (score >= low) & (score <= high);
        }
      above += sum(load(piece));
    }
    const double share = above / total;
    if (alike || std::abs(share - chance.top_p) < kShareError) race.sure = false;
    if (share >= chance.top_p) {
      outside = own;
      return false;
    }
    inside = own;
    return true;
  });
}

}  // namespace

template <class T>
int64_t drawn(const T* scores, int64_t width, const Chance& chance) {
  const double heat = chance.temperature;
  if (!(heat > 1e-30 && heat < 1e30)) return kUnsure;
  const bool best = 0 < chance.top_k && chance.top_k < width;
  if (best || (chance.min_p > 0 && chance.top_p < 1)) return drawn_sorted(scores, width, chance);
  if (chance.min_p > 0) return among_probable(scores, width, chance);
  return chance.top_p < 1 ? in_nucleus(scores, width, chance) : among_all(scores, width, chance);
}

template int64_t drawn(const float*, int64_t, const Chance&);
template int64_t drawn(const double*, int64_t, const Chance&);

}  // namespace enginebay
