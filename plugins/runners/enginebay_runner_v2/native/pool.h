// The kernels' threads: few, kept, and never waited for longer than what they have begun.
#pragma once
#include <cstdint>

namespace enginebay {

struct Work {
  void (*run)(const void* work, int64_t first, int64_t end);
  const void* work;
};

// Runs of neighbours that cover `items`, run by the caller and up to `threads` - 1 others; returns when all are done.
// Called from within such a run, or while another thread has the pool, the caller does it all.
void share(int64_t items, int threads, Work work);

}  // namespace enginebay
