#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dispatch.h"
#include "draws.h"
#include "operators.h"
#include "parallel.h"

namespace enginebay {
namespace {

template <class T>
const T* of_rows(const Tensor& tensor, int64_t rows, at::ScalarType type, const char* what) {
  TORCH_CHECK(tensor.scalar_type() == type && tensor.numel() == rows && tensor.is_contiguous(), "draws takes ", rows, " ",
              what, " of ", type, ", and got ", tensor.scalar_type(), " ", tensor.sizes());
  return static_cast<const T*>(tensor.data_ptr());
}

}  // namespace

Tensor draws_op(const Tensor& scores, const Tensor& rows, const Tensor& highest, const Tensor& best, const Tensor& keys,
                const Tensor& temperatures, const Tensor& top_k, const Tensor& min_p, const Tensor& top_p) {
  const bool single = scores.scalar_type() == at::kFloat;
  TORCH_CHECK(scores.dim() == 2 && (single || scores.scalar_type() == at::kDouble),
              "draws takes float32 or float64 [rows, vocabulary], and got ", scores.scalar_type(), " ", scores.sizes());
  const int64_t count = rows.numel(), width = scores.size(1);
  const auto* at = of_rows<int64_t>(rows, count, at::kLong, "rows");
  const auto* peaks = of_rows<double>(highest, count, at::kDouble, "largest scores");
  const auto* first = of_rows<int64_t>(best, count, at::kLong, "best tokens");
  const auto* key = of_rows<int64_t>(keys, count, at::kLong, "keys");
  const auto* heat = of_rows<double>(temperatures, count, at::kDouble, "temperatures");
  const auto* k = of_rows<int64_t>(top_k, count, at::kLong, "top_k");
  const auto* p = of_rows<double>(min_p, count, at::kDouble, "min_p");
  const auto* share = of_rows<double>(top_p, count, at::kDouble, "top_p");
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK_INDEX(at[i] >= 0 && at[i] < scores.size(0), "draws has no row ", at[i], " of ", scores.size(0));
    TORCH_CHECK_INDEX(first[i] >= 0 && first[i] < width, "draws has no token ", first[i], " of ", width);
  }
  const Tensor in = scores.contiguous(), tokens = at::empty({count}, rows.options());
  auto* out = static_cast<int64_t*>(tokens.data_ptr());
  parallel(count, threads(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Chance chance{peaks[i], first[i], heat[i], uint64_t(key[i]), k[i], p[i], share[i]};
      const void* row = static_cast<const char*>(in.data_ptr()) + at[i] * width * in.element_size();
      out[i] = single ? drawn(static_cast<const float*>(row), width, chance) : drawn(static_cast<const double*>(row), width, chance);
    }
  });
  return tokens;
}

}  // namespace enginebay

TORCH_LIBRARY_FRAGMENT(enginebay, m) {
  m.def("draws(Tensor scores, Tensor rows, Tensor highest, Tensor best, Tensor keys, Tensor temperatures, Tensor top_k, "
        "Tensor min_p, Tensor top_p) -> Tensor",
        enginebay::draws_op);
}
