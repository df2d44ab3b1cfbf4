#include <ATen/ops/empty.h>

#include "dispatch.h"
#include "int8.h"
#include "operators.h"

namespace enginebay {

Tensor pack_linear_int8_op(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2, "a weight to pack is [outputs, inputs], and this is ", weight.sizes());
  TORCH_CHECK_VALUE(weight.size(1) <= kInt8Inputs, weight.size(1), " inputs are too many for weights in int8: at most ",
                    kInt8Inputs);
  const Tensor in = weight.contiguous();
  const int64_t blocks = (in.size(0) + kBlock - 1) / kBlock;
  const Tensor out = at::empty({blocks * int8_block(in.size(1))}, in.options().dtype(at::kChar));
  dispatch(in, [&](auto type) {
    using T = decltype(type);
    int8_pack<T>(data<T>(in), data<int8_t>(out), in.size(0), in.size(1), threads());
  });
  return out;
}

Tensor linear_int8_op(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t out_features,
                      bool float_out) {
  const bool biased = bias.has_value() && bias->defined();
  TORCH_CHECK(!biased || (bias->dim() == 1 && bias->size(0) == out_features && bias->scalar_type() == x.scalar_type()),
              "the bias is not [", out_features, "] of ", x.scalar_type());
  const int64_t inputs = x.size(-1), rows = inputs ? x.numel() / inputs : 0;
  TORCH_CHECK_VALUE(weight.dim() == 1 && weight.is_contiguous() && inputs <= kInt8Inputs &&
                        weight.numel() == (out_features + kBlock - 1) / kBlock * int8_block(inputs),
                    weight.numel(), " elements are no packed weight of ", out_features, " outputs and ", inputs,
                    " inputs in int8");
  auto sizes = x.sizes().vec();
  sizes.back() = out_features;
  const Tensor out = at::empty(sizes, x.options().dtype(float_out ? at::kFloat : x.scalar_type()));
  const Tensor in = x.contiguous(), b = biased ? bias->contiguous() : Tensor();
  const Tensor quantised = at::empty({rows, int8_padded(inputs)}, x.options().dtype(at::kChar));
  const Tensor scales = at::empty({rows}, x.options().dtype(at::kFloat));
  dispatch(in, [&](auto type) {
    using T = decltype(type);
    int8_quantise<T>(data<T>(in), data<int8_t>(quantised), data<float>(scales), rows, inputs, threads());
    const T* addend = biased ? data<T>(b) : nullptr;
    if (float_out)
      int8_linear<T, float>(data<int8_t>(quantised), data<float>(scales), data<int8_t>(weight), addend,
                            data<float>(out), rows, inputs, out_features, threads());
    else
      int8_linear<T, T>(data<int8_t>(quantised), data<float>(scales), data<int8_t>(weight), addend, data<T>(out), rows,
                        inputs, out_features, threads());
  });
  return out;
}

}  // namespace enginebay
