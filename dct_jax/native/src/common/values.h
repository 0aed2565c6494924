// Value codecs: how a float32 travels.
#pragma once

#include <algorithm>

#include "common/floats.h"
#include "common/wire.h"

namespace dct {

inline float clamp(float x, float limit) { return std::min(std::max(x, -limit), limit); }

// Rounds to a 16-bit codec. What lies beyond its range becomes its largest finite number.
inline uint16_t narrow(float x, Values codec) {
  if (codec == Values::kFloat16) return float_to_half(clamp(x, 65504.0f));
  return float_to_bfloat(clamp(x, bits_to_float(0x7F7F0000)));
}

// The value that `narrow` wrote; exact.
inline float widen(uint16_t x, Values codec) {
  return codec == Values::kFloat16 ? half_to_float(x) : bfloat_to_float(x);
}

// What a receiver will read.
inline float round_trip(float x, Values codec) {
  return codec == Values::kFloat32 ? x : widen(narrow(x, codec), codec);
}

// Words that `count` values take.
inline int64_t value_words(int64_t count, Values codec) {
  return codec == Values::kFloat32 ? count : (count + 1) / 2;
}

// Writes value_words(count, codec) words, the last one's unused half as zero.
inline void write_values(const float* values, int64_t count, Values codec, uint32_t* words) {
  if (codec == Values::kFloat32) {
    std::memcpy(words, values, size_t(count) * 4);
    return;
  }
  for (int64_t i = 0; i + 1 < count; i += 2) {
    words[i / 2] = narrow(values[i], codec) | uint32_t(narrow(values[i + 1], codec)) << 16;
  }
  if (count & 1) words[count / 2] = narrow(values[count - 1], codec);
}

// Value i of what `write_values` wrote.
inline float read_value(const uint32_t* words, int64_t i, Values codec) {
  if (codec == Values::kFloat32) return bits_to_float(words[i]);
  return widen(uint16_t(words[i / 2] >> (16 * (i & 1))), codec);
}

}  // namespace dct
