// QSGD blocks (docs/wire_format.md): buckets of floats as one scale and a few bits an entry, rounded at random.
//
// A block of `count` entries: float32 scales, one a bucket, then the codes, lowest bits first. Every
// result is one float32 operation, so that C++, JAX and NumPy agree bit for bit; no sum follows a
// product that a compiler could fuse with it, and nothing is ever denormal.
#pragma once

#include <algorithm>

#include "common/cpu.h"
#include "common/floats.h"
#include "common/integers.h"


namespace dct {

constexpr float kQsgdTiny = 1e-30f;           // a bucket below it counts as zero
constexpr uint32_t kQsgdMost = 0x7F000000;    // 2^127, the largest scale: q * (m / s) stays finite
constexpr int64_t kQsgdStretch = 256;         // entries coded at a time, in a buffer on the stack

// Levels on each side of zero.
constexpr int32_t qsgd_levels(int bits) { return (1 << (bits - 1)) - 1; }

// Words of the codes of `count` entries.
inline int64_t qsgd_code_words(int64_t count, int bits) { return ceil_div(count * bits, 32); }

// Words of a block of `count` entries, scales included.
inline int64_t qsgd_words(int64_t count, int bits, int64_t bucket) {
  return ceil_div(count, bucket) + qsgd_code_words(count, bits);
}

// What the random bits of a step are drawn with.
inline uint32_t qsgd_key(uint32_t seed) { return mix_all(seed + 0x9E3779B1u); }

// The bits of the largest magnitude. Magnitudes order like the integers that they look like, and a
// maximum of integers becomes vector code without further permission.
DCT_INLINE uint32_t qsgd_largest(const float* x, int64_t n) {
  int32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t magnitude = int32_t(float_to_bits(x[i]) & 0x7FFFFFFFu);
    most = magnitude > most ? magnitude : most;
  }
  if (uint32_t(most) < float_to_bits(kQsgdTiny)) return 0;
  return std::min(uint32_t(most), kQsgdMost);
}

// One code a byte. T = |x| in 65536ths of a level; 16 random bits decide which level it becomes.
DCT_INLINE void qsgd_codes(const float* x, int n, uint32_t index, uint32_t key, int bits,
                           float factor, uint8_t* code) {
  const int32_t s = qsgd_levels(bits);
  const float limit = float(s * 65536);
  for (int i = 0; i < n; ++i) {
    const uint32_t raw = float_to_bits(x[i]);
    float t = bits_to_float(raw & 0x7FFFFFFFu) * factor;
    t = t < limit ? t : limit;
    int32_t q = (int32_t(t) + int32_t(mix_all((index + uint32_t(i)) ^ key) >> 16)) >> 16;
    q = q < s ? q : s;
    const int32_t sign = int32_t(raw) >> 31;
    code[i] = uint8_t((q ^ sign) - sign + s);
  }
}

// Eight codes of a byte each, squeezed together at the low end.
DCT_INLINE uint64_t qsgd_squeeze(uint64_t x, int bits) {
  if (bits == 8) return x;
  const int gap = 8 - bits;
  const uint64_t two = (uint64_t(1) << (2 * bits)) - 1, four = (uint64_t(1) << (4 * bits)) - 1;
  x = (x | x >> gap) & (two * 0x0001000100010001u);
  x = (x | x >> (2 * gap)) & (four * 0x0000000100000001u);
  return (x | x >> (4 * gap)) & ((uint64_t(1) << (8 * bits)) - 1);
}

// Packs whole groups of eight codes; `code` is zero up to the end of the last word.
DCT_INLINE void qsgd_pack(const uint8_t* code, int n, int bits, uint32_t* words) {
  uint8_t* out = reinterpret_cast<uint8_t*>(words);  // little endian, as everything that travels
  const int padded = int(qsgd_code_words(n, bits)) * (32 / bits);
  int i = 0;
  for (; i + 8 <= padded; i += 8, out += bits) {
    uint64_t eight;
    std::memcpy(&eight, code + i, 8);
    eight = qsgd_squeeze(eight, bits);
    std::memcpy(out, &eight, size_t(bits));
  }
  if (i < padded) std::memcpy(out, code + i, 4);  // eight bits a code, an odd word
}

// qsgd_quantize_bucket for a constant number of bits.
DCT_INLINE void qsgd_quantize_loop(const float* x, int64_t n, uint32_t index, uint32_t key,
                                   int bits, uint32_t* scale, uint32_t* words) {
  alignas(32) uint8_t code[kQsgdStretch];
  const uint32_t m = *scale = qsgd_largest(x, n);
  const float factor = m ? float(qsgd_levels(bits) * 65536) / bits_to_float(m) : 0.0f;
  for (int64_t at = 0; at < n; at += kQsgdStretch) {
    const int part = int(std::min(kQsgdStretch, n - at));
    if (part < kQsgdStretch) std::memset(code, 0, sizeof code);
    qsgd_codes(x + at, part, index + uint32_t(at), key, bits, factor, code);
    qsgd_pack(code, part, bits, words + at * bits / 32);
  }
}

// out += the values of n codes, whose level is worth `unit`.
DCT_INLINE void qsgd_add_loop(const uint32_t* words, int64_t n, int bits, float unit, float* out) {
  const int per = 32 / bits;
  const int32_t s = qsgd_levels(bits), mask = (1 << bits) - 1;
  for (int64_t at = 0; at < n; at += per, ++words) {
    float value[16];
    for (int j = 0; j < per; ++j) {
      int32_t code = int32_t(*words >> (bits * j)) & mask;
      code = code < 2 * s ? code : 2 * s;  // no encoder writes 2 s + 1, but a reader may meet it
      value[j] = float(code - s) * unit;
    }
    if (n - at >= per) {
      for (int j = 0; j < per; ++j) out[at + j] += value[j];
    } else {
      for (int64_t j = 0; j < n - at; ++j) out[at + j] += value[j];
    }
  }
}

// The same loops for every number of bits, as constants, and for both kinds of processor.
#define DCT_QSGD_FOR_BITS(call) \
  if (bits == 2) {              \
    constexpr int b = 2;        \
    call;                       \
  } else if (bits == 4) {       \
    constexpr int b = 4;        \
    call;                       \
  } else {                      \
    constexpr int b = 8;        \
    call;                       \
  }

#if defined(__x86_64__)
DCT_AVX2 inline void qsgd_quantize_avx2(const float* x, int64_t n, uint32_t index, uint32_t key,
                                        int bits, uint32_t* scale, uint32_t* words) {
  DCT_QSGD_FOR_BITS(qsgd_quantize_loop(x, n, index, key, b, scale, words))
}

DCT_AVX2 inline void qsgd_add_avx2(const uint32_t* words, int64_t n, int bits, float unit,
                                   float* out) {
  DCT_QSGD_FOR_BITS(qsgd_add_loop(words, n, b, unit, out))
}
#endif

// Writes the scale and the codes of one bucket of n entries, whose first one has the global index `index`. `words` gets
// qsgd_code_words(n, bits) of them. `bits` is 2, 4 or 8.
inline void qsgd_quantize_bucket(const float* x, int64_t n, uint32_t index, uint32_t key, int bits,
                                 uint32_t* scale, uint32_t* words) {
#if defined(__x86_64__)
  if (has_avx2()) return qsgd_quantize_avx2(x, n, index, key, bits, scale, words);
#endif
  DCT_QSGD_FOR_BITS(qsgd_quantize_loop(x, n, index, key, b, scale, words))
}

// out += the values of a bucket of n entries. The scale must be valid (qsgd_scales_valid); any code is.
inline void qsgd_add_bucket(uint32_t scale, const uint32_t* words, int64_t n, int bits,
                            float* out) {
  const float unit = bits_to_float(scale) / float(qsgd_levels(bits));
#if defined(__x86_64__)
  if (has_avx2()) return qsgd_add_avx2(words, n, bits, unit, out);
#endif
  DCT_QSGD_FOR_BITS(qsgd_add_loop(words, n, b, unit, out))
}

#undef DCT_QSGD_FOR_BITS

// Writes a whole block: `words` gets qsgd_words(count, bits, bucket) of them. Call it where denormals are
// flushed (parallel.h: FlushDenormals). `bucket` is a multiple of 32.
inline void qsgd_quantize(const float* x, int64_t count, int64_t first_index, uint32_t seed,
                          int bits, int64_t bucket, uint32_t* words) {
  const uint32_t key = qsgd_key(seed);
  uint32_t* codes = words + ceil_div(count, bucket);
  for (int64_t at = 0; at < count; at += bucket) {
    qsgd_quantize_bucket(x + at, std::min(bucket, count - at), uint32_t(first_index + at), key, bits,
                         words + at / bucket, codes + at * bits / 32);
  }
}

// out += the values of a block, whose scales must be valid.
inline void qsgd_dequantize_add(const uint32_t* words, int64_t count, int bits, int64_t bucket,
                                float* out) {
  const uint32_t* codes = words + ceil_div(count, bucket);
  for (int64_t at = 0; at < count; at += bucket) {
    qsgd_add_bucket(words[at / bucket], codes + at * bits / 32, std::min(bucket, count - at), bits,
                    out + at);
  }
}

// out = the values of a block, whose scales must be valid.
inline void qsgd_dequantize(const uint32_t* words, int64_t count, int bits, int64_t bucket,
                            float* out) {
  std::fill_n(out, count, 0.0f);
  qsgd_dequantize_add(words, count, bits, bucket, out);
}

// Whether every scale is a number that an encoder writes: not negative, not NaN, at most 2^127.
inline bool qsgd_scales_valid(const uint32_t* words, int64_t count, int64_t bucket) {
  return std::all_of(words, words + ceil_div(count, bucket),
                     [](uint32_t m) { return m <= kQsgdMost; });
}

}  // namespace dct
