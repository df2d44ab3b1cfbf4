#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace enginebay {
namespace {

constexpr int kMost = 256;           // threads, the caller among them
constexpr int64_t kRuns = 4;         // of each thread's part: what others can take over when it is late
constexpr auto kSpin = std::chrono::microseconds(100);  // longer than between two layers, shorter than between two steps

// The job's number, and below it how many runs of this part nobody has begun. Who comes late finds none, or another job;
// who takes one knows that the job is not done, so that what was read of it before is true.
struct alignas(64) Part {
  std::atomic<uint64_t> open{0};
};

struct Pool {
  std::atomic_flag taken = ATOMIC_FLAG_INIT;
  int started = 1;  // threads that there are, the caller counted
  std::atomic<bool> spins{true};
  alignas(64) std::atomic<uint32_t> job{0};
  alignas(64) std::atomic<uint32_t> left{0};  // runs that are not done
  // what the job is: written before its number
  alignas(64) std::atomic<int64_t> items{0};
  std::atomic<int> parts{0};
  std::atomic<void (*)(const void*, int64_t, int64_t)> run{nullptr};
  std::atomic<const void*> work{nullptr};
  Part part[kMost];
};

Pool pool;
thread_local bool inside = false;  // of a run: there is nobody else to give a part of it to

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Looks for a while whether it is so.
template <class F>
bool spun(const F& so) {
  if (!pool.spins.load(std::memory_order_relaxed)) return so();
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (so()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// First item of a part, or of a run in it.
int64_t at(int64_t items, int64_t parts, int64_t which) { return items * which / parts; }

// Take runs of the job, the own part's first, until there is none to take.
void help(uint32_t job, int self) noexcept {
  const int64_t items = pool.items.load(std::memory_order_relaxed);
  const int parts = pool.parts.load(std::memory_order_relaxed);
  const auto run = pool.run.load(std::memory_order_relaxed);
  const void* const work = pool.work.load(std::memory_order_relaxed);
  for (int i = 0; i < parts; ++i) {
    const int which = (self + i) % parts;
    const int64_t first = at(items, parts, which), count = at(items, parts, which + 1) - first;
    const int64_t runs = std::min(kRuns, count);
    std::atomic<uint64_t>& open = pool.part[which].open;
    for (uint64_t seen = open.load(std::memory_order_acquire); uint32_t(seen >> 32) == job && uint32_t(seen);) {
      if (!open.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      const int64_t mine = runs - uint32_t(seen--);
      run(work, first + at(count, runs, mine), first + at(count, runs, mine + 1));
      if (pool.left.fetch_sub(1) == 1) pool.left.notify_one();
    }
  }
}

void* serve(void* number) {
  const int self = int(reinterpret_cast<intptr_t>(number));
  inside = true;
  for (uint32_t done = 0;;) {
    if (!spun([&] { return pool.job.load(std::memory_order_acquire) != done; })) pool.job.wait(done);
    done = pool.job.load(std::memory_order_acquire);
    if (self < pool.parts.load(std::memory_order_relaxed)) help(done, self);
  }
  return nullptr;
}

void forget() {  // a forked child has none of the threads
  pool.started = 1;
  pool.taken.clear();
  inside = false;
}

// So many threads, or as many as can be had. Signals are for the process's other threads.
void grow(int threads) {
  if (pool.started == 1) {
    static const int registered = pthread_atfork(nullptr, nullptr, forget);
    (void)registered;
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (; pool.started < std::min(threads, kMost); ++pool.started) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, serve, reinterpret_cast<void*>(intptr_t(pool.started))) != 0) break;
    pthread_setname_np(thread, "enginebay-pool");
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  cpu_set_t cpus;
  pool.spins = sched_getaffinity(0, sizeof cpus, &cpus) != 0 || pool.started <= CPU_COUNT(&cpus);
}

}  // namespace

void share(int64_t items, int threads, Work work) {
  if (inside || pool.taken.test_and_set(std::memory_order_acquire)) return work.run(work.work, 0, items);
  if (threads > pool.started) grow(threads);
  const int parts = std::min(threads, pool.started);
  const uint32_t job = pool.job.load(std::memory_order_relaxed) + 1;
  pool.items.store(items, std::memory_order_relaxed);
  pool.parts.store(parts, std::memory_order_relaxed);
  pool.run.store(work.run, std::memory_order_relaxed);
  pool.work.store(work.work, std::memory_order_relaxed);
  const auto runs = [&](int which) { return uint32_t(std::min(kRuns, at(items, parts, which + 1) - at(items, parts, which))); };
  uint32_t left = 0;
  for (int which = 0; which < parts; ++which) left += runs(which);
  pool.left.store(left, std::memory_order_relaxed);
  for (int which = 0; which < parts; ++which)
    pool.part[which].open.store(uint64_t(job) << 32 | runs(which), std::memory_order_release);
  pool.job.store(job);  // in one order with the look whether anybody sleeps
  pool.job.notify_all();
  inside = true;
  help(job, 0);
  inside = false;
  if (!spun([] { return pool.left.load(std::memory_order_acquire) == 0; }))
    for (uint32_t now; (now = pool.left.load(std::memory_order_acquire)) != 0;) pool.left.wait(now);
  pool.taken.clear(std::memory_order_release);
}

}  // namespace enginebay
