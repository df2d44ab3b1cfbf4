// From a tensor's dtype to the kernels' types.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "kernels.h"

namespace enginebay {

template <class F>
void dispatch(const at::Tensor& like, const F& f) {
  if (like.scalar_type() == at::kFloat)
    f(float{});
  else if (like.scalar_type() == at::kBFloat16)
    f(bf16{});
  else
    TORCH_CHECK_NOT_IMPLEMENTED(false, "the native operators take float32 and bfloat16, and got ", like.scalar_type());
}

template <class T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

inline int threads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

}  // namespace enginebay
