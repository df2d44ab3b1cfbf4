#include "draws_sorted.h"

#include <algorithm>
#include <vector>

#include "draws_common.h"

namespace enginebay {
namespace {

constexpr int64_t kLanes = 16, kDeep = 64;  // of so many scores a peak is the largest: every 16th of 1024

struct Token {
  double score;
  int64_t id;
};

// A number that the `count` best are not below, and few others reach.
template <class T>
T bound_of_best(const T* scores, int64_t width, int64_t count) {
  std::vector<T> among;
  constexpr int64_t step = kLanes * kDeep;
  if (const int64_t whole = width / step; 4 * count <= whole * kLanes) {
    for (int64_t i = 0; i < whole * step; i += step) {
      T peaks[kLanes];
      std::copy(scores + i, scores + i + kLanes, peaks);
      for (int64_t deep = kLanes; deep < step; deep += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane)
          peaks[lane] = peaks[lane] < scores[i + deep + lane] ? scores[i + deep + lane] : peaks[lane];
      among.insert(among.end(), peaks, peaks + kLanes);
    }
  } else {
    among.assign(scores, scores + width);
  }
  std::nth_element(among.begin(), among.begin() + (count - 1), among.end(), std::greater<T>());
  return among[count - 1];
}

template <class T>
std::vector<Token> best_first(const T* scores, int64_t width, const Chance& chance) {
  double least = chance.highest + chance.temperature * (std::log(chance.min_p) - 1e-9);
  const bool few = 0 < chance.top_k && chance.top_k < width;
  if (few) least = double(bound_of_best(scores, width, chance.top_k));
  least -= 1e-15 * (std::abs(chance.highest) + std::abs(least)) + 1e-290 * chance.temperature;
  const T bound = least > double(std::numeric_limits<T>::lowest()) ? std::nextafter(T(least), -std::numeric_limits<T>::infinity())
                                                                    : std::numeric_limits<T>::lowest();
  std::vector<Token> found;
  constexpr int64_t step = 64;
  for (int64_t i = 0; i < width; i += step) {
    const int64_t end = std::min(i + step, width);
    bool reached = false;
    for (int64_t j = i; j < end; ++j) reached |= scores[j] >= bound;
    if (!reached) continue;
    for (int64_t j = i; j < end; ++j)
      if (scores[j] >= bound) found.push_back({scaled(scores[j], chance), j});
  }
  std::sort(found.begin(), found.end(),
            [](const Token& a, const Token& b) { return a.score > b.score || (a.score == b.score && a.id < b.id); });
  return found;
}

}  // namespace

template <class T>
int64_t drawn_sorted(const T* scores, int64_t width, const Chance& chance) {
  const std::vector<Token> tokens = best_first(scores, width, chance);
  size_t left = tokens.size();
  if (chance.top_k > 0) left = std::min(left, size_t(chance.top_k));
  if (chance.min_p > 0) {
    const double least = std::log(chance.min_p), slack = kSame * (1 - least);
    size_t likely = 0;
    while (likely < left && (tokens[likely].score == 0 || tokens[likely].score >= least + slack)) ++likely;
    if (likely < left && tokens[likely].score > least - slack) return kUnsure;
    left = std::max(likely, size_t(1));
  }
  if (chance.top_p < 1) {
    double total = 0, before = 0;
    std::vector<double> weights(left);
    for (size_t i = 0; i < left; ++i) total += weights[i] = std::exp(tokens[i].score);
    size_t nucleus = 0;
    for (; nucleus < left; before += weights[nucleus++]) {
      if (std::abs(before / total - chance.top_p) < kSame) return kUnsure;
      if (before / total >= chance.top_p) break;
    }
    left = std::max(nucleus, size_t(1));
  }
  int64_t winner = kUnsure;
  double most = -std::numeric_limits<double>::infinity();
  bool sure = true;
  for (size_t i = 0; i < left; ++i) {
    const double sum = tokens[i].score - std::log(exponential(chance.key, tokens[i].id));
    if (std::abs(sum - most) < kClose) sure = false;
    if (sum > most) most = sum, winner = tokens[i].id;
  }
  return sure ? winner : kUnsure;
}

template int64_t drawn_sorted(const float*, int64_t, const Chance&);
template int64_t drawn_sorted(const double*, int64_t, const Chance&);

}  // namespace enginebay
