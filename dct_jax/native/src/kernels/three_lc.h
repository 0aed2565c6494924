// 3LC (docs/wire_format.md): entries as -1, 0 or 1 of a scale, five of them in a byte, runs of zero bytes as one.
//
// Byte i of a layer holds entries i, i + n, ..., i + 4n where n is the number of bytes: five streams that are read
// side by side, so that nothing is ever shuffled within a vector. Beside each loop stands its plain form, which
// is what it means and what runs without AVX2.
#pragma once

#include "kernels/blocks.h"

namespace dct {

constexpr uint8_t kZeroByte = 121;      // five zeros
constexpr uint8_t kFirstRun = 243;      // ... up to 255: runs of 2 to 14 such bytes
constexpr int64_t kLongestRun = 14;
constexpr float kTernaryTiny = 1e-30f;  // a layer below it counts as zero: nothing is ever denormal
constexpr int64_t kVector = 32;         // bytes that loops may read and write past an end

// Bytes that the entries of a layer are folded into.
inline int64_t code_bytes(int64_t entries) { return ceil_div(entries, 5); }

// What 1 stands for in a layer whose largest magnitude is `largest`; finite.
inline float ternary_scale(float largest, float multiplier) {
  return largest < kTernaryTiny ? 0.0f : std::min(largest * multiplier, FLT_MAX);
}

// What is sent, and what half of it is: only magnitudes above that are.
struct Scale {
  float m, half;
  explicit Scale(float scale) : m(scale), half(scale > 0 ? scale * 0.5f : INFINITY) {}
};

// Appends a digit to each code, of n entries of which `left` keeps what they lose.
inline void ternary_digits_plain(const float* x, int64_t n, Scale scale, uint8_t* code, float* left) {
  for (int64_t i = 0; i < n; ++i) {
    const int q = (x[i] > scale.half) - (x[i] < -scale.half);
    code[i] = uint8_t(code[i] * 3 + q + 1);
    if (left) left[i] = x[i] - float(q) * scale.m;
  }
}

// How many of n codes are zero bytes before the first one that is not.
inline int64_t zeros_ahead_plain(const uint8_t* code, int64_t n) {
  int64_t i = 0;
  while (i < n && code[i] == kZeroByte) ++i;
  return i;
}

// Adds the values of n codes to five streams; `out[k]` has room for count[k] of them.
inline void ternary_add_plain(const uint8_t* code, int64_t from, int64_t n, float m, float* const* out,
                              const int64_t* count) {
  for (int64_t i = from; i < n; ++i) {
    int rest = code[i];
    for (int k = 4; k >= 0; --k, rest /= 3) {
      if (i < count[k]) out[k][i] += float(rest % 3 - 1) * m;
    }
  }
}

#if defined(__x86_64__)
DCT_AVX2 inline void ternary_digits_avx2(const float* x, int64_t n, Scale scale, uint8_t* code, float* left) {
  const __m256 half = _mm256_set1_ps(scale.half), minus_half = _mm256_set1_ps(-scale.half);
  const __m256 m = _mm256_set1_ps(scale.m), minus_m = _mm256_set1_ps(-scale.m);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), one = _mm256_set1_epi8(1);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i q[4];
    for (int j = 0; j < 4; ++j) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * j);
      const __m256 up = _mm256_cmp_ps(v, half, _CMP_GT_OQ), down = _mm256_cmp_ps(v, minus_half, _CMP_LT_OQ);
      q[j] = _mm256_sub_epi32(_mm256_castps_si256(down), _mm256_castps_si256(up));
      if (!left) continue;
      const __m256 sent = _mm256_or_ps(_mm256_and_ps(up, m), _mm256_and_ps(down, minus_m));
      _mm256_storeu_ps(left + i + 8 * j, _mm256_sub_ps(v, sent));
    }
    __m256i digit = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    digit = _mm256_add_epi8(_mm256_permutevar8x32_epi32(digit, order), one);
    auto* at = reinterpret_cast<__m256i*>(code + i);
    const __m256i c = _mm256_loadu_si256(at);
    _mm256_storeu_si256(at, _mm256_add_epi8(_mm256_add_epi8(c, digit), _mm256_add_epi8(c, c)));
  }
  ternary_digits_plain(x + i, n - i, scale, code + i, left ? left + i : nullptr);
}

// Bit j is set where byte j is a zero byte.
DCT_AVX2 inline uint32_t zero_bits(__m256i bytes) {
  return uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(char(kZeroByte)))));
}

DCT_AVX2 inline int64_t zeros_ahead_avx2(const uint8_t* code, int64_t n) {
  int64_t i = 0;
  for (; i < n; i += kVector) {
    const uint32_t bits = zero_bits(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(code + i)));
    if (bits != ~0u) return std::min<int64_t>(n, i + _tzcnt_u32(~bits));
  }
  return n;
}

// Copies what comes before the next zero byte, and says how much that is.
DCT_AVX2 inline int64_t copy_others_avx2(const uint8_t* code, int64_t n, uint8_t* out) {
  int64_t i = 0;
  for (; i < n; i += kVector) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(code + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), bytes);
    if (const uint32_t bits = zero_bits(bytes)) return std::min<int64_t>(n, i + _tzcnt_u32(bits));
  }
  return n;
}

DCT_AVX2 inline void ternary_add_avx2(const uint8_t* code, int64_t n, float m, float* const* out,
                                      const int64_t* count) {
  const __m256i third = _mm256_set1_epi16(21846), one = _mm256_set1_epi16(1);  // 21846 / 2^16: exact below 256
  const __m256 scale = _mm256_set1_ps(m);
  const int64_t whole = *std::min_element(count, count + 5);
  int64_t i = 0;
  for (; i + 16 <= std::min(n, whole); i += 16) {
    __m256i rest = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(code + i)));
    for (int k = 4; k >= 0; --k) {
      const __m256i next = _mm256_mulhi_epu16(rest, third);
      const __m256i three = _mm256_add_epi16(next, _mm256_add_epi16(next, next));
      const __m256i q = _mm256_sub_epi16(_mm256_sub_epi16(rest, three), one);
      rest = next;
      const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(q)));
      const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(q, 1)));
      float* to = out[k] + i;
      _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), _mm256_mul_ps(low, scale)));
      _mm256_storeu_ps(to + 8, _mm256_add_ps(_mm256_loadu_ps(to + 8), _mm256_mul_ps(high, scale)));
    }
  }
  ternary_add_plain(code, i, n, m, out, count);
}
#endif

// The loops above, as the processor has them. Pointers to codes must have kVector bytes of room behind their end.
inline void ternary_digits(const float* x, int64_t n, Scale scale, uint8_t* code, float* left) {
#if defined(__x86_64__)
  if (has_avx2()) return ternary_digits_avx2(x, n, scale, code, left);
#endif
  ternary_digits_plain(x, n, scale, code, left);
}

inline void ternary_add(const uint8_t* code, int64_t n, float m, float* const* out, const int64_t* count) {
#if defined(__x86_64__)
  if (has_avx2()) return ternary_add_avx2(code, n, m, out, count);
#endif
  ternary_add_plain(code, 0, n, m, out, count);
}

inline int64_t zeros_ahead(const uint8_t* code, int64_t n) {
#if defined(__x86_64__)
  if (has_avx2()) return zeros_ahead_avx2(code, n);
#endif
  return zeros_ahead_plain(code, n);
}

inline int64_t copy_others(const uint8_t* code, int64_t n, uint8_t* out) {
#if defined(__x86_64__)
  if (has_avx2()) return copy_others_avx2(code, n, out);
#endif
  int64_t i = 0;
  for (; i < n && code[i] != kZeroByte; ++i) out[i] = code[i];
  return i;
}

// Symbols that a run of zero bytes takes.
inline int64_t run_bytes(int64_t run) { return ceil_div(run, kLongestRun); }

// Writes the codes of a run, 14s first; a single byte that is left over stays what it is.
inline uint8_t* put_run(int64_t run, uint8_t* out) {
  for (; run >= kLongestRun; run -= kLongestRun) *out++ = 255;
  if (run == 1) *out++ = kZeroByte;
  if (run > 1) *out++ = uint8_t(kFirstRun - 2 + run);
  return out;
}

// What became of one part of a layer's codes: symbols, and after them a run that may go on beyond the part.
struct Runs {
  int64_t symbols = 0, last_run = 0;
  int64_t bytes() const { return symbols + run_bytes(last_run); }
};

// Zero-run encoding of codes [begin, end) out of n; `out` has room for end - begin + kVector symbols. A run belongs to
// the part in which it begins, so that all parts together are, byte for byte, what one pass over all codes would give,
// and borders cost nothing.
inline Runs zero_run(const uint8_t* code, int64_t begin, int64_t end, int64_t n, uint8_t* out) {
  const uint8_t* first = out;
  int64_t i = begin;
  if (begin > 0 && code[begin - 1] == kZeroByte) i += zeros_ahead(code + begin, end - begin);
  while (i < end) {
    const int64_t others = copy_others(code + i, end - i, out);
    out += others;
    i += others;
    if (i >= end) break;
    const int64_t run = zeros_ahead(code + i, n - i);
    if (i + run >= end) return {out - first, run};
    out = put_run(run, out);
    i += run;
  }
  return {out - first, 0};
}

// Zero-run decoding into n codes; what is missing is zero. Returns how many the symbols stand for, or -1 when that is
// more than n.
inline int64_t expand_runs(const uint8_t* symbols, int64_t count, uint8_t* code, int64_t n) {
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t symbol = symbols[i];
    if (symbol < kFirstRun) {
      if (at >= n) return -1;
      code[at++] = symbol;
      continue;
    }
    const int64_t run = symbol - (kFirstRun - 2);
    if (at + run > n) return -1;
    if (at + 16 <= n) {
      std::memset(code + at, kZeroByte, 16);  // of a known length: no call
    } else {
      std::memset(code + at, kZeroByte, size_t(run));
    }
    at += run;
  }
  std::memset(code + at, kZeroByte, size_t(n - at));
  return at;
}

}  // namespace dct
