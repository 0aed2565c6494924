// The checksum of messages (docs/wire_format.md): a sum over words, each mixed in a way of its own place.
#pragma once

#include <algorithm>

#include "common/cpu.h"
#include "common/integers.h"
#include "common/wire.h"

namespace dct {

// What words [begin, end) of a message add to its checksum. A word is mixed with a key of its place, so that words
// cannot trade places, and multiplied with an odd number of its place, so that equal changes in two places do not
// cancel. Both are bijections: a change of one word is always noticed.
DCT_INLINE uint32_t checksum_range(const uint32_t* words, int64_t begin, int64_t end) {
  uint32_t sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t key = (uint32_t(i) + 1) * 0x9E3779B1u;
    sum += mix_all(words[i] ^ key) * (((key ^ (key >> 15)) * 0x2C1B3C6Du) | 1);
  }
  return sum;
}

#if defined(__x86_64__)
DCT_AVX2 inline uint32_t checksum_range_avx2(const uint32_t* words, int64_t begin, int64_t end) {
  return checksum_range(words, begin, end);  // eight words at a time
}
#endif

// The checksum of a message of `length` words, at least one; whatever its checksum word says.
inline uint32_t checksum(const uint32_t* words, int64_t length) {
  uint32_t sum = checksum_range(words, 0, std::min(length, word::kChecksum));
#if defined(__x86_64__)
  if (has_avx2()) return mix_all(sum + checksum_range_avx2(words, word::kChecksum + 1, length));
#endif
  return mix_all(sum + checksum_range(words, word::kChecksum + 1, length));
}

}  // namespace dct
