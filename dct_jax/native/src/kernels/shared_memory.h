// Parameters that several threads read and write at the same time, without a lock (Hogwild).
//
// Every number is read and written as a whole, so that no thread ever sees half of one. What two threads write to the
// same number at the same moment, one of them loses: that is what Hogwild accepts.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace dct {

template <typename T>
inline T relaxed_load(const T* from) {
  return std::atomic_ref<T>(*const_cast<T*>(from)).load(std::memory_order_relaxed);
}

template <typename T>
inline void relaxed_store(T* to, T value) {
  std::atomic_ref<T>(*to).store(value, std::memory_order_relaxed);
}

// A copy of what is there, number by number.
inline void shared_read(const uint32_t* shared, uint32_t* copy, int64_t n) {
  for (int64_t i = 0; i < n; ++i) copy[i] = relaxed_load(shared + i);
}

// Makes of `before`, which was read, `after`. A number that others have changed since is changed by the difference, so
// that alone the result is `after` to the bit, and together nothing that others wrote is undone. A number that is to
// stay is not touched: rows of a table that a batch has not used cost a comparison.
template <typename T>
void shared_write(T* shared, const T* before, const T* after, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t old = std::bit_cast<uint32_t>(before[i]);
    if (old == std::bit_cast<uint32_t>(after[i])) continue;
    const T now = relaxed_load(shared + i);
    relaxed_store(shared + i, std::bit_cast<uint32_t>(now) == old ? after[i] : T(now + (after[i] - before[i])));
  }
}

}  // namespace dct
