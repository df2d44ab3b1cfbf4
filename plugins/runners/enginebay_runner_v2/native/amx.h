// The product of panel.h on AMX tiles.
#pragma once
#include <cstdint>

#include "simd.h"

namespace enginebay {

bool amx_here();     // built for it, the processor has it, and the kernel allows it
void amx_configure(int upper, int lower);  // rows of tiles 0, 1, 4 and of 2, 3, 5; without lower ones 5 has 16
void amx_release();  // this thread's tiles; a thread that keeps them pays for them at each switch
void amx_panel(const bf16* a, int64_t lda, int64_t rows, const bf16* b, int64_t b_step, int64_t blocks, int64_t inputs,
               float* c, int64_t ldc, bool add, bool stream);

}  // namespace enginebay
