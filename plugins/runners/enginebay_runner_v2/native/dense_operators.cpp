#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>

#include "dispatch.h"
#include "operators.h"

namespace enginebay {
namespace {

void check_norm(const Tensor& x, const Tensor& weight, int64_t style) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1), "a norm's weight has ", weight.numel(),
              " elements, and its input is ", x.sizes());
  TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "a norm of ", x.scalar_type(), " got a weight of ",
              weight.scalar_type());
  TORCH_CHECK_VALUE(style >= 0 && style <= 2, "style must be 0, 1 or 2, and is ", style);
}

void check_gate(int64_t width, int64_t activation) {
  TORCH_CHECK(width % 2 == 0, "gate and up need an even last dimension, and this is ", width);
  TORCH_CHECK_VALUE(activation >= 0 && activation <= 2, "activation must be 0, 1 or 2, and is ", activation);
}

bool has(const std::optional<Tensor>& tensor) { return tensor.has_value() && tensor->defined(); }

void check_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t out_features) {
  TORCH_CHECK(x.dim() >= 1 && out_features >= 0, "linear takes [..., inputs], and got ", x.sizes());
  TORCH_CHECK(weight.scalar_type() == x.scalar_type() && (!has(bias) || bias->scalar_type() == x.scalar_type()),
              "linear of ", x.scalar_type(), " got a weight of ", weight.scalar_type());
  TORCH_CHECK_VALUE(weight.dim() == 1 || (weight.dim() == 2 && weight.size(0) == out_features), "the weight has ",
                    weight.size(0), " outputs, and out_features is ", out_features);
  TORCH_CHECK(!has(bias) || (bias->dim() == 1 && bias->size(0) == out_features), "the bias is not [", out_features,
              "]");
}

Tensor results(const Tensor& x, int64_t outputs, at::ScalarType type) {
  auto sizes = x.sizes().vec();
  sizes.back() = outputs;
  return at::empty(sizes, x.options().dtype(type));
}

// What the kernels take of a product with a packed weight; tensors that memory is lent from are held.
template <class T>
struct Product {
  Product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t outputs)
      : inputs(x.size(-1)), step(padded<T>(inputs)), rows(inputs ? x.numel() / inputs : 0) {
    const int64_t blocks = (outputs + kBlock - 1) / kBlock;
    TORCH_CHECK_VALUE(weight.numel() == blocks * kBlock * step && weight.is_contiguous(), weight.numel(),
                      " elements are no packed weight of ", outputs, " outputs and ", inputs, " inputs");
    in = (step == inputs ? x : at::constant_pad_nd(x, {0, step - inputs})).contiguous();
    if (!has(bias)) return;
    held = bias->contiguous();
    addend = data<T>(held);
  }
  int64_t inputs, step, rows;
  Tensor in, held;
  const T* addend = nullptr;
};

}  // namespace

Tensor rms_norm_op(const Tensor& x, const Tensor& weight, double eps, int64_t style) {
  check_norm(x, weight, style);
  const Tensor in = x.contiguous(), w = weight.contiguous(), out = at::empty(in.sizes(), in.options());
  const int64_t width = in.size(-1), rows = width ? in.numel() / width : 0;
  dispatch(in, [&](auto type) {
    using T = decltype(type);
    rms_norm<T>(data<T>(in), nullptr, data<T>(w), nullptr, data<T>(out), rows, width, float(eps), Style(style), threads());
  });
  return out;
}

std::tuple<Tensor, Tensor> add_rms_norm_op(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                           int64_t style) {
  check_norm(x, weight, style);
  TORCH_CHECK(residual.sizes() == x.sizes() && residual.scalar_type() == x.scalar_type(), "x is ", x.sizes(), " of ",
              x.scalar_type(), ", and the residual ", residual.sizes(), " of ", residual.scalar_type());
  const Tensor in = x.contiguous(), more = residual.contiguous(), w = weight.contiguous();
  const Tensor out = at::empty(in.sizes(), in.options()), total = at::empty(in.sizes(), in.options());
  const int64_t width = in.size(-1), rows = width ? in.numel() / width : 0;
  dispatch(in, [&](auto type) {
    using T = decltype(type);
    rms_norm<T>(data<T>(in), data<T>(more), data<T>(w), data<T>(total), data<T>(out), rows, width, float(eps),
                Style(style), threads());
  });
  return {out, total};
}

Tensor gated_op(const Tensor& gate_up, int64_t activation) {
  TORCH_CHECK(gate_up.dim() >= 1, "gate and up need a dimension");
  check_gate(gate_up.size(-1), activation);
  const Tensor in = gate_up.contiguous();
  auto sizes = in.sizes().vec();
  const int64_t width = sizes.back() /= 2;
  const Tensor out = at::empty(sizes, in.options());
  dispatch(in, [&](auto type) {
    using T = decltype(type);
    gated<T>(data<T>(in), data<T>(out), width ? out.numel() / width : 0, width, Activation(activation), threads());
  });
  return out;
}

Tensor pack_linear_op(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2, "a weight to pack is [outputs, inputs], and this is ", weight.sizes());
  const Tensor in = weight.contiguous();
  const int64_t blocks = (in.size(0) + kBlock - 1) / kBlock;
  Tensor out;
  dispatch(in, [&](auto type) {
    using T = decltype(type);
    out = at::empty({blocks * kBlock * padded<T>(in.size(1))}, in.options());
    pack<T>(data<T>(in), data<T>(out), in.size(0), in.size(1), threads());
  });
  return out;
}

Tensor linear_op(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t out_features,
                 bool float_out) {
  if (weight.scalar_type() == at::kChar && x.dim() >= 1)
    return linear_int8_op(x, weight, bias, out_features, float_out);
  check_linear(x, weight, bias, out_features);
  if (weight.dim() != 1) {
    if (!float_out || x.scalar_type() == at::kFloat) return at::linear(x, weight, bias);
    return at::linear(x.to(at::kFloat), weight.to(at::kFloat),
                      has(bias) ? bias->to(at::kFloat) : std::optional<Tensor>());
  }
  const Tensor out = results(x, out_features, float_out ? at::kFloat : x.scalar_type());
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const Product<T> p(x, weight, bias, out_features);
    if (float_out)
      linear<T, float>(data<T>(p.in), p.step, data<T>(weight), p.addend, out.data_ptr<float>(), p.rows, p.inputs,
                       out_features, threads());
    else
      linear<T, T>(data<T>(p.in), p.step, data<T>(weight), p.addend, data<T>(out), p.rows, p.inputs, out_features,
                   threads());
  });
  return out;
}

Tensor gated_linear_op(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t out_features,
                       int64_t activation) {
  check_gate(out_features, activation);
  if (weight.scalar_type() == at::kBFloat16 && weight.dim() == 1) {
    check_linear(x, weight, bias, out_features);
    const int64_t width = out_features / 2;
    const Product<bf16> p(x, weight, bias, out_features);
    const Tensor out = results(x, width, x.scalar_type());
    if (gated_linear(data<bf16>(p.in), p.step, data<bf16>(weight), p.addend, data<bf16>(out), p.rows, p.inputs, width,
                     Activation(activation), threads()))
      return out;
  }
  return gated_op(linear_op(x, weight, bias, out_features, false), activation);
}

Tensor packed_rows_op(const Tensor& packed, const Tensor& ids, int64_t outputs, int64_t inputs) {
  TORCH_CHECK(ids.scalar_type() == at::kLong && outputs >= 0 && inputs >= 0, "rows are int64, and these are ",
              ids.scalar_type());
  const Tensor rows = ids.contiguous();
  const int64_t* at = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i)
    TORCH_CHECK_INDEX(at[i] >= 0 && at[i] < outputs, "row ", at[i], " is not one of ", outputs);
  auto sizes = ids.sizes().vec();
  sizes.push_back(inputs);
  const int64_t blocks = (outputs + kBlock - 1) / kBlock;
  Tensor out;
  dispatch(packed, [&](auto type) {
    using T = decltype(type);
    TORCH_CHECK_VALUE(packed.dim() == 1 && packed.numel() == blocks * kBlock * padded<T>(inputs) && packed.is_contiguous(),
                      packed.numel(), " elements are no packed weight of ", outputs, " outputs and ", inputs, " inputs");
    out = at::empty(sizes, packed.options());
    packed_rows<T>(data<T>(packed), at, data<T>(out), rows.numel(), inputs, threads());
  });
  return out;
}

Tensor select_rows_op(const Tensor& x, const Tensor& rows) { return at::index_select(x, 0, rows); }

std::tuple<Tensor, Tensor> greedy_op(const Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && (logits.size(1) > 0 || logits.size(0) == 0),
              "greedy takes [rows, vocabulary], and got ", logits.sizes());
  TORCH_CHECK(logits.size(1) < (int64_t(1) << 31), "a vocabulary of ", logits.size(1), " is too large");
  const Tensor in = logits.contiguous();
  const Tensor ids = at::empty({in.size(0)}, in.options().dtype(at::kLong));
  const Tensor values = at::empty({in.size(0)}, in.options().dtype(at::kFloat));
  dispatch(in, [&](auto type) {
    using T = decltype(type);
    greedy<T>(data<T>(in), ids.data_ptr<int64_t>(), values.data_ptr<float>(), in.size(0), in.size(1), threads());
  });
  return {ids, values};
}

std::tuple<Tensor, Tensor, Tensor> linear_greedy_op(const Tensor& x, const Tensor& weight,
                                                    const std::optional<Tensor>& bias, int64_t out_features) {
  if (x.dim() != 2 || weight.dim() != 1 || weight.scalar_type() == at::kChar || out_features < 1) {
    const Tensor logits = linear_op(x, weight, bias, out_features, true);
    const auto [ids, values] = greedy_op(logits);
    return {logits, ids, values};
  }
  check_linear(x, weight, bias, out_features);
  const Tensor logits = results(x, out_features, at::kFloat);
  const Tensor ids = at::empty({x.size(0)}, x.options().dtype(at::kLong));
  const Tensor values = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  dispatch(x, [&](auto type) {
    using T = decltype(type);
    const Product<T> p(x, weight, bias, out_features);
    Largest largest(x.size(0));
    linear<T, float>(data<T>(p.in), p.step, data<T>(weight), p.addend, logits.data_ptr<float>(), p.rows, p.inputs,
                     out_features, threads(), &largest);
    for (int64_t row = 0; row < x.size(0); ++row) {
      ids.data_ptr<int64_t>()[row] = largest.of(row).id;
      values.data_ptr<float>()[row] = largest.of(row).value;
    }
  });
  return {logits, ids, values};
}

}  // namespace enginebay
