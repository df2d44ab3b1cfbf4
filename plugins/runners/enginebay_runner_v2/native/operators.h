// The operators as C++ functions of tensors: checks, memory for results, then the kernels.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace enginebay {

using at::Tensor;

Tensor rms_norm_op(const Tensor& x, const Tensor& weight, double eps, int64_t style);
std::tuple<Tensor, Tensor> add_rms_norm_op(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                           int64_t style);
Tensor gated_op(const Tensor& gate_up, int64_t activation);
Tensor pack_linear_op(const Tensor& weight);
Tensor linear_op(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t out_features,
                 bool float_out);
Tensor gated_linear_op(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t out_features,
                       int64_t activation);
Tensor pack_linear_int8_op(const Tensor& weight);
Tensor linear_int8_op(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t out_features,
                      bool float_out);  // `linear` with a weight of pack_linear_int8
Tensor packed_rows_op(const Tensor& packed, const Tensor& ids, int64_t outputs, int64_t inputs);
Tensor select_rows_op(const Tensor& x, const Tensor& rows);
std::tuple<Tensor, Tensor> greedy_op(const Tensor& logits);
std::tuple<Tensor, Tensor, Tensor> linear_greedy_op(const Tensor& x, const Tensor& weight,
                                                    const std::optional<Tensor>& bias, int64_t out_features);
Tensor rotary_attention_op(const Tensor& qkv, const Tensor& positions, const Tensor& table, Tensor key_cache,
                           Tensor value_cache, const Tensor& slots, const Tensor& block_tables,
                           const Tensor& query_starts, const Tensor& context_lens, int64_t heads, int64_t kv_heads,
                           double scale, int64_t window, double softcap, const std::optional<Tensor>& sinks);
Tensor paged_attention_op(const Tensor& q, const Tensor& k, const Tensor& v, Tensor key_cache, Tensor value_cache,
                          const Tensor& slots, const Tensor& block_tables, const Tensor& query_starts,
                          const Tensor& context_lens, double scale, int64_t window, double softcap,
                          const std::optional<Tensor>& sinks);

}  // namespace enginebay
