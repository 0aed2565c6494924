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

// A cut of `have` things (up to 2^30) to `keep` of them, evenly: of the first n, at(n) stay, so that every stretch loses
// the same share, whatever it belongs to. 32 binary places, rounded up, give exactly `keep` in all; the twins have the
// same ones (kernels/cuts.py).
struct Cut {
  uint64_t step;
  Cut(int64_t keep, int64_t have)
      : step(keep < have ? ((uint64_t(keep) << 32) + uint64_t(have) - 1) / uint64_t(have) : uint64_t(1) << 32) {}
  int64_t at(int64_t n) const { return int64_t((uint64_t(n) * step) >> 32); }
  bool keeps(int64_t i) const { return at(i + 1) > at(i); }
};

// Spreads the bits of a word downwards: half of a mixer.
DCT_INLINE uint32_t mix(uint32_t x) {
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
