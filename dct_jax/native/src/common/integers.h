// Small integer arithmetic.
#pragma once

#include <cstdint>

namespace dct {

// a / b rounded up. `a` must not be negative, `b` must be positive.
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The place of the highest bit. `x` must not be zero.
inline int floor_log2(uint64_t x) { return 63 - __builtin_clzll(x); }

// Spreads the bits of a word, so that sums of such words tell words and their order apart.
inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  return x ^ (x >> 15);
}

}  // namespace dct
