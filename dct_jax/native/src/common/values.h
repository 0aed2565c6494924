// Value codecs: how a float32 travels. Ids are those of docs/wire_format.md.
#pragma once

#include "common/layers.h"

namespace dct {

enum class Values : uint32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

inline float clamp(float x, float limit) { return std::min(std::max(x, -limit), limit); }

inline uint16_t narrow(float x, Values codec) {
  if (codec == Values::kFloat16) return float_to_half(clamp(x, 65504.0f));
  return float_to_bfloat(clamp(x, bits_to_float(0x7F7F0000)));
}

inline float widen(uint16_t x, Values codec) {
  return codec == Values::kFloat16 ? half_to_float(x) : bfloat_to_float(x);
}

inline float round_trip(float x, Values codec) {
  return codec == Values::kFloat32 ? x : widen(narrow(x, codec), codec);
}

inline int64_t value_words(int64_t count, Values codec) {
  return codec == Values::kFloat32 ? count : (count + 1) / 2;
}

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

inline float read_value(const uint32_t* words, int64_t i, Values codec) {
  if (codec == Values::kFloat32) return bits_to_float(words[i]);
  return widen(uint16_t(words[i / 2] >> (16 * (i & 1))), codec);
}

}  // namespace dct
