// Which tokens may win a random draw: enginebay.worker.contenders has the definition and the reason why it is one.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "dispatch.h"
#include "operators.h"
#include "parallel.h"
#include "simd.h"

namespace enginebay {
namespace {

constexpr int64_t kPiece = 4096;
constexpr float kMargin = 1.001f;  // for all that single precision rounds

using u64x8 = uint64_t __attribute__((vector_size(64)));
using f32x8 = float __attribute__((vector_size(32)));

struct Row {
  const float* scores;
  float highest, inverse, bound;
  uint64_t key;
};

// How far the uniform numbers behind the noise of tokens id, id + 1, … are from 1, and up to 2^-53 less than that.
v16 missing(uint64_t key, uint64_t id) {
  float found[16];
  for (int half = 0; half < 2; ++half) {
    u64x8 bits = u64x8{0, 1, 2, 3, 4, 5, 6, 7} + (id + 8 * half);
    bits = bits * 0x9E3779B97F4A7C15u + key;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    bits = ~(bits ^ (bits >> 31)) >> 12;
    const f32x8 wide = __builtin_convertvector(bits, f32x8);
    std::memcpy(found + 8 * half, &wide, sizeof wide);
  }
  return load(found) * splat(0x1p-52f / kMargin);
}

bool any(i16 mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)mask);
#endif
  const u64x8 pairs = (u64x8)mask;
  uint64_t found = 0;
  for (int lane = 0; lane < 8; ++lane) found |= pairs[lane];
  return found;
}

void contenders_among(const Row& row, int64_t from, int64_t end, std::vector<int64_t>& into) {
  const v16 limit = splat(row.bound * kMargin), highest = splat(row.highest), inverse = splat(row.inverse);
  for (int64_t i = from; i < end; i += 16) {
    const int64_t left = end - i;
    const v16 chances = exp((load_upto(row.scores + i, left) - highest) * inverse) * limit;
    const i16 may = missing(row.key, uint64_t(i)) <= chances;
    if (!any(may)) continue;
    for (int lane = 0; lane < 16 && lane < left; ++lane)
      if (may[lane]) into.push_back(i + lane);
  }
}

}  // namespace

// scores [rows, n] float32; highest, temperatures, bounds [rows] float64; keys [rows], 64 bits each → (rows, ids), rising
std::tuple<Tensor, Tensor> contenders_op(const Tensor& scores, const Tensor& highest, const Tensor& temperatures,
                                         const Tensor& bounds, const Tensor& keys) {
  TORCH_CHECK(scores.dim() == 2 && scores.scalar_type() == at::kFloat, "contenders takes float32 [rows, vocabulary], got ",
              scores.scalar_type(), " ", scores.sizes());
  const int64_t rows = scores.size(0), width = scores.size(1), pieces = (width + kPiece - 1) / kPiece;
  for (const Tensor* one : {&highest, &temperatures, &bounds})
    TORCH_CHECK(one->scalar_type() == at::kDouble && one->numel() == rows && one->is_contiguous(),
                "contenders takes a float64 of each of its ", rows, " rows");
  TORCH_CHECK(keys.scalar_type() == at::kLong && keys.numel() == rows && keys.is_contiguous(),
              "contenders takes a key of each of its ", rows, " rows");
  const Tensor in = scores.contiguous();
  std::vector<std::vector<int64_t>> found(rows * pieces);
  parallel(rows * pieces, rows * width < 64 * kPiece ? 1 : threads(), [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t r = p / pieces, from = p % pieces * kPiece;
      // a temperature so small that its inverse overflows: any large number tells the same tokens apart
      const double inverse = 1.0 / temperatures.data_ptr<double>()[r];
      const Row row{in.data_ptr<float>() + r * width, float(highest.data_ptr<double>()[r]),
                    inverse < 1e30 ? float(inverse) : 1e30f, float(bounds.data_ptr<double>()[r]),
                    uint64_t(keys.data_ptr<int64_t>()[r])};
      contenders_among(row, from, from + kPiece < width ? from + kPiece : width, found[p]);
    }
  });
  int64_t count = 0;
  for (const auto& piece : found) count += int64_t(piece.size());
  const Tensor at_rows = at::empty({count}, keys.options()), ids = at::empty({count}, keys.options());
  int64_t *row = at_rows.data_ptr<int64_t>(), *id = ids.data_ptr<int64_t>();
  for (int64_t p = 0; p < rows * pieces; ++p)
    for (const int64_t one : found[p]) *row++ = p / pieces, *id++ = one;
  return {at_rows, ids};
}

}  // namespace enginebay

TORCH_LIBRARY_FRAGMENT(enginebay, m) {
  m.def("contenders(Tensor scores, Tensor highest, Tensor temperatures, Tensor bounds, Tensor keys) -> (Tensor, Tensor)",
        enginebay::contenders_op);
}
