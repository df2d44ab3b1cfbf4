// One row's random draw: enginebay.worker.random_draws has the definition, and draws what is not sure here.
#pragma once
#include <cstdint>

namespace enginebay {

// The largest score, where it first stands, and what else the row's draw depends on. A filter that is off: 0, 0, 1.
struct Chance {
  double highest;
  int64_t best;
  double temperature;
  uint64_t key;
  int64_t top_k;
  double min_p, top_p;
};

constexpr int64_t kUnsure = -1;

// The token drawn of scores [width], or kUnsure where rounding might decide. T is float or double.
template <class T>
int64_t drawn(const T* scores, int64_t width, const Chance& chance);

}  // namespace enginebay
