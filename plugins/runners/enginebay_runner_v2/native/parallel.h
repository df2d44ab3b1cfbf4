// Work shared among the threads of the pool that torch uses; what is computed never depends on how many they are.
#pragma once
#include <omp.h>

#include <cstdint>

namespace enginebay {

// f(first, end) over `items` in one run of neighbours per thread.
template <class F>
void parallel(int64_t items, int threads, const F& f) {
  if (threads > items) threads = int(items);
  if (threads <= 1 || omp_in_parallel()) {
    if (items > 0) f(int64_t(0), items);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t n = omp_get_num_threads(), t = omp_get_thread_num();
    f(items * t / n, items * (t + 1) / n);
  }
}

}  // namespace enginebay
