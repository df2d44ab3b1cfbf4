// Puts the kernels before the references of ops.py for tensors on the CPU.
#include <torch/library.h>

#include "operators.h"
#include "panel.h"

TORCH_LIBRARY_IMPL(enginebay, CPU, m) {
  m.impl("rms_norm", enginebay::rms_norm_op);
  m.impl("add_rms_norm", enginebay::add_rms_norm_op);
  m.impl("gated", enginebay::gated_op);
  m.impl("pack_linear", enginebay::pack_linear_op);
  m.impl("pack_linear_int8", enginebay::pack_linear_int8_op);
  m.impl("linear", enginebay::linear_op);
  m.impl("gated_linear", enginebay::gated_linear_op);
  m.impl("packed_rows", enginebay::packed_rows_op);
  m.impl("rotary_attention", enginebay::rotary_attention_op);
  m.impl("paged_attention", enginebay::paged_attention_op);
  m.impl("select_rows", enginebay::select_rows_op);
  m.impl("greedy", enginebay::greedy_op);
  m.impl("linear_greedy", enginebay::linear_greedy_op);
}

TORCH_LIBRARY_FRAGMENT(enginebay, m) {
  m.def("native_kind() -> int", [] { return int64_t(enginebay::kind()); });
  m.def("use_native_kind(int kind) -> bool", [](int64_t kind) {
    return kind >= 0 && kind <= 2 && enginebay::use_kind(enginebay::Kind(kind));
  });
}
