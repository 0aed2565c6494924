// Floats as bits, and the 16-bit formats, for processors that have no instructions for them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace dct {

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// IEEE half to float; exact.
inline float half_to_float(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16;
  uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7F800000 | (mantissa << 13));
  if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float value = float(mantissa) * 0x1p-24f;
  return sign ? -value : value;
}

// Float to IEEE half, to nearest even. `x` must be finite and within half's range.
inline uint16_t float_to_half(float x) {
  uint32_t bits = float_to_bits(x);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude < 0x38800000) {  // below half's smallest normal number: a multiple of 2^-24
    float scaled = bits_to_float(magnitude) * 0x1p24f;
    return uint16_t(sign | uint16_t(std::nearbyint(scaled)));
  }
  uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return uint16_t(sign | uint16_t((rounded - 0x38000000) >> 13));
}

// Float to bfloat16, to nearest even. `x` must not be NaN.
inline uint16_t float_to_bfloat(float x) {
  uint32_t bits = float_to_bits(x);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// bfloat16 to float; exact.
inline float bfloat_to_float(uint16_t x) { return bits_to_float(uint32_t(x) << 16); }

}  // namespace dct
