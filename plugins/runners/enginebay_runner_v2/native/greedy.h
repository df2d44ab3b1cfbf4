// The first of the largest of a row's logits, and what is looked at while it is still near.
#pragma once
#include <limits>
#include <mutex>
#include <vector>

#include "simd.h"

namespace enginebay {

struct Best {
  float value;
  int64_t id;
};

inline bool beats(float value, float best) { return value > best || (value != value && best == best); }

// The first of the largest in [from, end): lanes keep their own first, the end takes the lowest id among equal lanes.
template <class T>
Best best_of(const T* logits, int64_t from, int64_t end) {
  v16 values = splat(-std::numeric_limits<float>::infinity());
  i16 ids = i16{} - 1;
  i16 at;
  for (int i = 0; i < 16; ++i) at[i] = int32_t(from + i);
  int64_t i = from;
  for (; i + 16 <= end; i += 16, at += 16) {
    v16 v = load(logits + i);
    i16 better = (v > values) | ((v != v) & (values == values));
    values = choose(better, v, values);
    ids = (better & at) | (~better & ids);
  }
  Best best{widen(logits[from]), from};
  for (int lane = 0; lane < 16; ++lane)
    if (ids[lane] >= 0 && (beats(values[lane], best.value) ||
                           (!beats(best.value, values[lane]) && int64_t(ids[lane]) < best.id)))
      best = {values[lane], ids[lane]};
  for (; i < end; ++i)
    if (beats(widen(logits[i]), best.value)) best = {widen(logits[i]), i};
  return best;
}

// Of some rows the best so far, in pieces of columns that come in any order and from any thread.
class Largest {
 public:
  explicit Largest(int64_t rows) : best_(rows, {-std::numeric_limits<float>::infinity(), -1}) {}

  // Columns from … end - 1 of `count` rows, `step` numbers from one to the next, of which the first is row `row`.
  template <class T>
  void look(const T* logits, int64_t step, int64_t row, int64_t count, int64_t from, int64_t end) {
    if (from >= end) return;
    std::vector<Best> found(count);
    for (int64_t r = 0; r < count; ++r) found[r] = best_of(logits + r * step, from, end);
    const std::lock_guard<std::mutex> alone(mutex_);
    for (int64_t r = 0; r < count; ++r) {
      Best& best = best_[row + r];
      if (best.id < 0 || beats(found[r].value, best.value) ||
          (!beats(best.value, found[r].value) && found[r].id < best.id))
        best = found[r];
    }
  }
  const Best& of(int64_t row) const { return best_[row]; }

 private:
  std::mutex mutex_;
  std::vector<Best> best_;
};

}  // namespace enginebay
