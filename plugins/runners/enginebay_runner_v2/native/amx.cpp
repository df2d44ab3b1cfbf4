#include "amx.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

namespace enginebay {
namespace {

// Tiles 0 to 3 hold sums, 4 and 5 rows of a, 6 and 7 halves of a block of b.
struct alignas(64) Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

thread_local int configured = 0;  // rows of both halves: 0 none

}  // namespace

void amx_configure(int upper, int lower) {
  const int wanted = upper * 64 + lower;
  if (configured == wanted) return;
  Config config;
  const int second = lower ? lower : upper;
  for (int tile : {0, 1, 4}) config.rows[tile] = uint8_t(upper);
  for (int tile : {2, 3}) config.rows[tile] = uint8_t(second);
  config.rows[5] = lower ? uint8_t(lower) : 16;  // without lower rows tile 5 is one more half of b
  for (int tile : {6, 7}) config.rows[tile] = 16;
  __asm__ volatile("" : : "r"(&config) : "memory");  // the intrinsic tells the compiler of 8 bytes alone
  _tile_loadconfig(&config);
  configured = wanted;
}

namespace {

inline void fetch(const bf16* b, bool stream) {
  if (!stream) return;
  for (int line = 0; line < 16; ++line)
    __builtin_prefetch(reinterpret_cast<const char*>(b) + 4096 + line * 64);
}

// 17 to 32 rows and one block.
void tall(const bf16* a, int64_t lda, const bf16* b, int64_t tiles, float* c, int64_t ldc, bool add, bool stream) {
  const int64_t step = lda * 2, out = ldc * 4;
  if (add) {
    _tile_loadd(0, c, out);
    _tile_loadd(1, c + 16, out);
    _tile_loadd(2, c + 16 * ldc, out);
    _tile_loadd(3, c + 16 * ldc + 16, out);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t tile = 0; tile < tiles; ++tile, a += 32, b += 1024) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, step);
    fetch(b, stream);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    fetch(b + 512, stream);
    _tile_loadd(5, a + 16 * lda, step);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, out);
  _tile_stored(1, c + 16, out);
  _tile_stored(2, c + 16 * ldc, out);
  _tile_stored(3, c + 16 * ldc + 16, out);
}

// Up to 16 rows and two blocks, or one (`second` null).
template <bool both>
void flat(const bf16* a, int64_t lda, const bf16* b, int64_t b_step, int64_t tiles, float* c, int64_t ldc, bool add,
          bool stream) {
  const int64_t step = lda * 2, out = ldc * 4;
  if (add) {
    _tile_loadd(0, c, out);
    _tile_loadd(1, c + 16, out);
    if (both) _tile_loadd(2, c + 32, out);
    if (both) _tile_loadd(3, c + 48, out);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (both) _tile_zero(2);
    if (both) _tile_zero(3);
  }
  for (int64_t tile = 0; tile < tiles; ++tile, a += 32, b += 1024) {
    _tile_loadd(4, a, step);
    _tile_loadd(6, b, 64);
    fetch(b, stream);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 512, 64);
    fetch(b + 512, stream);
    _tile_dpbf16ps(1, 4, 7);
    if (both) {
      _tile_loadd(5, b + b_step, 64);
      fetch(b + b_step, stream);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(6, b + b_step + 512, 64);
      fetch(b + b_step + 512, stream);
      _tile_dpbf16ps(3, 4, 6);
    }
  }
  _tile_stored(0, c, out);
  _tile_stored(1, c + 16, out);
  if (both) _tile_stored(2, c + 32, out);
  if (both) _tile_stored(3, c + 48, out);
}

bool allowed() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // arch_prctl(2): ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

bool amx_here() {
  static const bool here = allowed();
  return here;
}

void amx_release() {
  if (configured) _tile_release();
  configured = 0;
}

void amx_panel(const bf16* a, int64_t lda, int64_t rows, const bf16* b, int64_t b_step, int64_t blocks, int64_t inputs,
               float* c, int64_t ldc, bool add, bool stream) {
  const int64_t tiles = (inputs + 31) / 32;
  for (; rows > 0; rows -= 32, a += 32 * lda, c += 32 * ldc) {
    if (rows > 16) {
      amx_configure(16, rows >= 32 ? 16 : int(rows - 16));
      for (int64_t n = 0; n < blocks; ++n) tall(a, lda, b + n * b_step, tiles, c + n * 32, ldc, add, stream);
      continue;
    }
    amx_configure(int(rows), 0);
    int64_t n = 0;
    for (; n + 2 <= blocks; n += 2)
      flat<true>(a, lda, b + n * b_step, b_step, tiles, c + n * 32, ldc, add, stream);
    if (n < blocks) flat<false>(a, lda, b + n * b_step, b_step, tiles, c + n * 32, ldc, add, stream);
  }
}

}  // namespace enginebay
#else
namespace enginebay {
bool amx_here() { return false; }
void amx_configure(int, int) {}
void amx_release() {}
void amx_panel(const bf16*, int64_t, int64_t, const bf16*, int64_t, int64_t, int64_t, float*, int64_t, bool, bool) {}
}  // namespace enginebay
#endif
