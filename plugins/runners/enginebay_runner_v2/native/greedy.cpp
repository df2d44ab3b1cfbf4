#include "greedy.h"

#include "kernels.h"
#include "parallel.h"

namespace enginebay {
namespace {

constexpr int64_t kPiece = 4096;

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
