// Linear layers of more than 16 rows on AMX tiles: while tiles multiply, the next weights are asked for, and the last sums
// become outputs. Results are those of `panel`, bit for bit. A violating change adds up inputs in another order.
#pragma once
#include "kernels.h"

namespace enginebay {

// Blocks [first, end) of out [rows, outputs] = x [rows, padded inputs] times packed weights, as linear() takes them.
template <class Out>
void amx_linear(const bf16* x, int64_t step, const bf16* packed, const bf16* bias, Out* out, int64_t rows,
                int64_t inputs, int64_t outputs, int64_t first, int64_t end);

// Blocks [first, end) of out [rows, width], where they are whole: gates are in these, what they gate `width` further on.
void amx_gated_linear(const bf16* x, int64_t step, const bf16* packed, const bf16* bias, bf16* out, int64_t rows,
                      int64_t inputs, int64_t width, Activation activation, int64_t first, int64_t end);

}  // namespace enginebay
