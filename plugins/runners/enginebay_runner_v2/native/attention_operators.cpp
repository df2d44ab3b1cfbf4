#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "attention_int8.h"
#include "dispatch.h"
#include "operators.h"

namespace enginebay {
namespace {

const Tensor& need(const Tensor& t, const char* name, at::ScalarType type, int64_t dims) {
  TORCH_CHECK(t.scalar_type() == type && t.dim() == dims && t.is_contiguous(), name, " must be a contiguous ", type,
              " tensor of ", dims, " dimensions, and is ", t.scalar_type(), " ", t.sizes());
  return t;
}

struct Step {  // of one call: what does not depend on the dtype
  const Tensor &slots, &tables, &starts, &lens;
  int64_t tokens;
};

// Every index is looked at before a kernel follows it.
void check(const Step& s, int64_t blocks, int64_t block_size) {
  need(s.slots, "slots", at::kLong, 1);
  need(s.tables, "block_tables", at::kInt, 2);
  need(s.starts, "query_starts", at::kInt, 1);
  need(s.lens, "context_lens", at::kInt, 1);
  const int64_t requests = s.lens.size(0), columns = s.tables.size(1);
  TORCH_CHECK(s.slots.size(0) == s.tokens, "there are ", s.tokens, " tokens and ", s.slots.size(0), " slots");
  TORCH_CHECK(s.starts.size(0) == requests + 1 && s.tables.size(0) == requests, requests, " context_lens need ",
              requests + 1, " query_starts and ", requests, " rows of block_tables, and got ", s.starts.size(0), " and ",
              s.tables.size(0));
  const auto *slots = s.slots.const_data_ptr<int64_t>();
  const auto *tables = s.tables.const_data_ptr<int32_t>(), *starts = s.starts.const_data_ptr<int32_t>(),
             *lens = s.lens.const_data_ptr<int32_t>();
  for (int64_t t = 0; t < s.tokens; ++t)
    TORCH_CHECK_INDEX(slots[t] >= 0 && slots[t] < blocks * block_size, "slot ", slots[t], " of token ", t,
                      " is not one of ", blocks * block_size);
  TORCH_CHECK_VALUE(starts[0] == 0 && starts[requests] == s.tokens, "query_starts go from ", starts[0], " to ",
                    starts[requests], ", and there are ", s.tokens, " tokens");
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t queries = int64_t(starts[r + 1]) - starts[r], used = (int64_t(lens[r]) + block_size - 1) / block_size;
    TORCH_CHECK_VALUE(queries >= 0 && lens[r] >= queries, "request ", r, " has ", queries, " queries in a context of ",
                      lens[r]);
    TORCH_CHECK_VALUE(queries == 0 || used <= columns, "request ", r, " needs ", used, " blocks of ", columns);
    for (int64_t b = 0; queries && b < used; ++b) {
      const int32_t block = tables[r * columns + b];
      TORCH_CHECK_INDEX(block >= 0 && block < blocks, "block ", block, " of request ", r, " is not one of ", blocks);
    }
  }
}

template <class C>
Pages<C> pages(const Tensor& cache) {
  return {data<C>(cache), cache.stride(0), cache.stride(1), cache.stride(2)};
}

// `stored`: the numbers of a head in a cache of int8.
void check_cache(const Tensor& cache, const char* name, const Tensor& like, int64_t heads, int64_t size,
                 int64_t stored) {
  if (cache.scalar_type() == at::kChar) {
    TORCH_CHECK(cache.dim() == 4 && cache.size(2) == heads && cache.size(3) == stored + kScale && cache.size(1) > 0 &&
                    cache.is_contiguous(),
                name, " of int8 must be contiguous [blocks, block size, ", heads, ", ", stored + kScale, "], and is ",
                cache.sizes());
    TORCH_CHECK(stored <= kStoredMost, name, " of int8 takes heads of at most ", kStoredMost, ", and they are of ", size);
    return;
  }
  TORCH_CHECK(cache.dim() == 4 && cache.size(2) == heads && cache.size(3) == size && cache.size(1) > 0 &&
                  (cache.stride(3) == 1 || size == 1),
              name, " must be [blocks, block size, ", heads, ", ", size, "], and is ", cache.sizes());
  TORCH_CHECK(cache.scalar_type() == like.scalar_type(), name, " is of ", cache.scalar_type(), ", and queries of ",
              like.scalar_type());
  TORCH_CHECK(like.scalar_type() == at::kFloat || (size % 2 == 0 && cache.stride(0) % 2 == 0 &&
                                                   cache.stride(1) % 2 == 0 && cache.stride(2) % 2 == 0),
              name, " of bfloat16 needs heads of an even size, and they are of ", size);
}

template <class T, class C>
Attention<T, C> arguments(const Step& s, const Tensor& keys, const Tensor& values, int64_t heads, double scale,
                          int64_t window, double softcap, const Tensor& sinks, int64_t key_size, int64_t value_size) {
  return {pages<C>(keys), pages<C>(values), s.slots.const_data_ptr<int64_t>(), s.tables.const_data_ptr<int32_t>(),
          s.starts.const_data_ptr<int32_t>(), s.lens.const_data_ptr<int32_t>(),
          sinks.defined() ? sinks.const_data_ptr<float>() : nullptr, s.tokens, s.lens.size(0), s.tables.size(1),
          keys.size(1), heads, keys.size(2), key_size, value_size, window, float(scale), float(softcap),
          threads()};
}

void check_caches(const Tensor& keys, const Tensor& values, const Tensor& like, int64_t heads, int64_t key_size,
                  int64_t value_size) {
  check_cache(keys, "key_cache", like, heads, key_size, stored_key(key_size));
  check_cache(values, "value_cache", like, heads, value_size, stored_value(value_size));
  TORCH_CHECK(keys.scalar_type() == values.scalar_type(), "the caches differ in dtype: ", keys.scalar_type(), " and ",
              values.scalar_type());
  TORCH_CHECK(values.size(0) == keys.size(0) && values.size(1) == keys.size(1),
              "the caches differ in blocks: ", keys.sizes(), " and ", values.sizes());
}

// f of the kernels' types: of the numbers of `like`, and of those in the cache.
template <class F>
void dispatch_both(const Tensor& like, const Tensor& cache, const F& f) {
  dispatch(like, [&](auto type) { cache.scalar_type() == at::kChar ? f(type, int8_t{}) : f(type, type); });
}

Tensor wide_sinks(const std::optional<Tensor>& sinks, int64_t heads) {
  if (!sinks.has_value() || !sinks->defined()) return {};
  TORCH_CHECK(sinks->numel() == heads, "there are ", heads, " heads and ", sinks->numel(), " sinks");
  return sinks->to(at::kFloat).contiguous();
}

void check_heads(int64_t heads, int64_t kv_heads, int64_t window, double softcap) {
  TORCH_CHECK_VALUE(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, heads, " heads cannot share ", kv_heads,
                    " key heads");
  TORCH_CHECK_VALUE(window >= 0 && softcap >= 0, "window and softcap are not negative, and are ", window, " and ",
                    softcap);
}

}  // namespace

Tensor rotary_attention_op(const Tensor& qkv, const Tensor& positions, const Tensor& table, Tensor key_cache,
                           Tensor value_cache, const Tensor& slots, const Tensor& block_tables,
                           const Tensor& query_starts, const Tensor& context_lens, int64_t heads, int64_t kv_heads,
                           double scale, int64_t window, double softcap, const std::optional<Tensor>& sinks) {
  check_heads(heads, kv_heads, window, softcap);
  TORCH_CHECK(qkv.dim() == 2 && qkv.size(1) % (heads + 2 * kv_heads) == 0, "qkv of ", heads, " and ", kv_heads,
              " heads cannot be ", qkv.sizes());
  const int64_t tokens = qkv.size(0), size = qkv.size(1) / (heads + 2 * kv_heads);
  check_caches(key_cache, value_cache, qkv, kv_heads, size, size);
  need(table, "table", at::kFloat, 2);
  need(positions, "positions", at::kLong, 1);
  TORCH_CHECK(table.size(1) % 2 == 0 && table.size(1) <= size, "heads of ", size, " cannot turn ", table.size(1),
              " dimensions");
  const Step step{slots, block_tables, query_starts, context_lens, tokens};
  check(step, key_cache.size(0), key_cache.size(1));
  TORCH_CHECK(positions.size(0) == tokens, "there are ", tokens, " tokens and ", positions.size(0), " positions");
  const auto* at_positions = positions.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < tokens; ++t)
    TORCH_CHECK_INDEX(at_positions[t] >= 0 && at_positions[t] < table.size(0), "position ", at_positions[t],
                      " is not in a table of ", table.size(0));
  const Tensor in = qkv.contiguous(), bias = wide_sinks(sinks, heads);
  const Tensor turned = at::empty({tokens, heads * size}, in.options()), out = at::empty_like(turned);
  dispatch_both(in, key_cache, [&](auto type, auto stored) {
    using T = decltype(type);
    const auto a = arguments<T, decltype(stored)>(step, key_cache, value_cache, heads, scale, window, softcap, bias,
                                                  size, size);
    turn_and_write(a, data<T>(in), at_positions, table.const_data_ptr<float>(), table.size(1), data<T>(turned));
    attend(a, data<T>(turned), data<T>(out));
  });
  return out;
}

Tensor paged_attention_op(const Tensor& q, const Tensor& k, const Tensor& v, Tensor key_cache, Tensor value_cache,
                          const Tensor& slots, const Tensor& block_tables, const Tensor& query_starts,
                          const Tensor& context_lens, double scale, int64_t window, double softcap,
                          const std::optional<Tensor>& sinks) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && k.size(0) == q.size(0) && v.size(0) == q.size(0) &&
                  k.size(1) == v.size(1) && k.size(2) == q.size(2),
              "q, k and v do not fit together: ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  TORCH_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(), "q, k and v differ in dtype");
  const int64_t tokens = q.size(0), heads = q.size(1), kv_heads = k.size(1);
  check_heads(heads, kv_heads, window, softcap);
  check_caches(key_cache, value_cache, q, kv_heads, k.size(2), v.size(2));
  const Step step{slots, block_tables, query_starts, context_lens, tokens};
  check(step, key_cache.size(0), key_cache.size(1));
  const Tensor queries = q.contiguous(), keys = k.contiguous(), values = v.contiguous(), bias = wide_sinks(sinks, heads);
  const Tensor out = at::empty({tokens, heads * v.size(2)}, q.options());
  dispatch_both(q, key_cache, [&](auto type, auto stored) {
    using T = decltype(type);
    const auto a = arguments<T, decltype(stored)>(step, key_cache, value_cache, heads, scale, window, softcap, bias,
                                                  k.size(2), v.size(2));
    write(a, data<T>(keys), data<T>(values));
    attend(a, data<T>(queries), data<T>(out));
  });
  return out;
}

}  // namespace enginebay
