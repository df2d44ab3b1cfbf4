#include "kernels.h"
#include "parallel.h"

#include <vector>

namespace enginebay {
namespace {

constexpr int64_t kPiece = 4096;

struct Best {
  float value;
  int64_t id;
};

bool beats(float value, float best) { return value > best || (value != value && best == best); }

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

}  // namespace

template <class T>
void greedy(const T* logits, int64_t* ids, float* values, int64_t rows, int64_t width, int threads) {
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  std::vector<Best> found(rows * pieces);
  parallel(rows * pieces, rows * width < 8 * kPiece ? 1 : threads, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t from = p % pieces * kPiece;
      found[p] = best_of(logits + p / pieces * width, from, from + kPiece < width ? from + kPiece : width);
    }
  });
  for (int64_t r = 0; r < rows; ++r) {
    Best best = found[r * pieces];
    for (int64_t p = 1; p < pieces; ++p)
      if (beats(found[r * pieces + p].value, best.value)) best = found[r * pieces + p];
    ids[r] = best.id;
    values[r] = best.value;
  }
}

template void greedy(const float*, int64_t*, float*, int64_t, int64_t, int);
template void greedy(const bf16*, int64_t*, float*, int64_t, int64_t, int);

}  // namespace enginebay
