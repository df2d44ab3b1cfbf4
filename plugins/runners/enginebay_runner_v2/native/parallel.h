// Work shared out among threads; what is computed never depends on how many they are.
#pragma once
#include <cstdint>

#include "pool.h"

namespace enginebay {

// f(first, end) over `items`, in a few runs of neighbours per thread; each item once, in any order.
template <class F>
void parallel(int64_t items, int threads, const F& f) {
  if (threads > items) threads = int(items);
  if (threads <= 1) {
    if (items > 0) f(int64_t(0), items);
    return;
  }
  share(items, threads, {[](const void* work, int64_t first, int64_t end) { (*static_cast<const F*>(work))(first, end); }, &f});
}

}  // namespace enginebay
