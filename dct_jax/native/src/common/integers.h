// Small integer arithmetic.
#pragma once

#include <cstdint>

// For what is used in loops that are compiled for several processors.
#define DCT_INLINE inline __attribute__((always_inline))

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

// Two rounds of xor-shift-multiply (the constants are those of "lowbias32"): every input bit turns every output bit about
// half of the time.
DCT_INLINE uint32_t mix_all(uint32_t x) {
  x = mix(x);
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

}  // namespace dct
