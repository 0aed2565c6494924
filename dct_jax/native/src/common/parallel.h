// Work sharing on XLA's own threads, and the floating point mode of every chunk.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/api/ffi.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace dct {

// XLA flushes denormals to zero; its thread pool does not always. Both sides of a computation that
// must agree bit for bit therefore set the mode themselves.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

// Calls body(i) for every i < tasks. Threads of the pool help, but the caller never waits for a
// task that has not begun: it takes whatever is left itself. Waiting for *scheduled* tasks instead
// deadlocks when all threads of the pool sit in such a wait.
template <typename Body>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t tasks, const Body& body) {
  struct Shared {
    const Body* body;
    int64_t tasks;
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
    std::mutex mutex;
    std::condition_variable finished;

    void work() {
      FlushDenormals mode;
      for (int64_t i; (i = next.fetch_add(1)) < tasks;) {
        (*body)(i);
        if (done.fetch_add(1) + 1 == tasks) {
          std::lock_guard<std::mutex> lock(mutex);
          finished.notify_all();
        }
      }
    }
  };
  auto shared = std::make_shared<Shared>();
  shared->body = &body;
  shared->tasks = tasks;
  int64_t helpers = std::min<int64_t>(tasks, pool.num_threads()) - 1;
  // A helper that comes too late finds nothing left and touches only `shared`, which it owns too.
  for (int64_t h = 0; h < helpers; ++h) pool.Schedule([shared] { shared->work(); });
  shared->work();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->finished.wait(lock, [&] { return shared->done.load() == tasks; });
}

}  // namespace dct
