// CRC32C (Castagnoli's polynomial, bits reversed), the checksum of frames: every error of up to three bits in a
// frame of up to 256 MB, and every burst of up to 32 bits in a longer one, is noticed.
//
// Processors have an instruction for it, which begins every cycle and takes three. So three stretches of the bytes are
// summed at once, and their sums joined: a sum is a linear function of its start, and moving it over a number of zero
// bytes is a matrix of 32 x 32 bits, kept as four tables.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/cpu.h"

#if defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#define DCT_CRC __attribute__((target("+crc")))
#elif defined(__x86_64__)
#define DCT_CRC __attribute__((target("sse4.2")))
#endif

namespace dct {

// table[k][b]: what byte b does to a sum, k zero bytes after it.
struct CrcTables {
  uint32_t table[8][256];
};

constexpr CrcTables make_crc_tables() {
  CrcTables t{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t state = b;
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? 0x82F63B78u : 0u);
    t.table[0][b] = state;
  }
  for (int k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = t.table[k - 1][b];
      t.table[k][b] = before >> 8 ^ t.table[0][before & 255];
    }
  }
  return t;
}

inline constexpr CrcTables kCrc = make_crc_tables();

// The state after n bytes, eight at a time; for processors without the instruction.
inline uint32_t crc_by_tables(uint32_t state, const uint8_t* bytes, int64_t n) {
  for (; n >= 8; n -= 8, bytes += 8) {
    uint64_t x;
    std::memcpy(&x, bytes, 8);
    x ^= state;
    state = 0;
    for (int k = 0; k < 8; ++k) state ^= kCrc.table[7 - k][x >> (8 * k) & 255];
  }
  for (; n > 0; --n) state = state >> 8 ^ kCrc.table[0][(state ^ *bytes++) & 255];
  return state;
}

// Moves a state over a number of zero bytes.
class CrcShift {
 public:
  explicit CrcShift(int64_t bytes) : bytes(bytes) {
    uint32_t column[32];
    for (int bit = 0; bit < 32; ++bit) {
      column[bit] = 1u << bit;
      for (int64_t i = 0; i < bytes; ++i) column[bit] = column[bit] >> 8 ^ kCrc.table[0][column[bit] & 255];
    }
    for (int k = 0; k < 4; ++k) {
      for (uint32_t b = 0; b < 256; ++b) {
        table_[k][b] = 0;
        for (int bit = 0; bit < 8; ++bit) table_[k][b] ^= b >> bit & 1 ? column[8 * k + bit] : 0;
      }
    }
  }
  uint32_t operator()(uint32_t state) const {
    return table_[0][state & 255] ^ table_[1][state >> 8 & 255] ^ table_[2][state >> 16 & 255] ^
           table_[3][state >> 24];
  }
  const int64_t bytes;

 private:
  uint32_t table_[4][256];
};

#if defined(DCT_CRC)

#if defined(__x86_64__)
DCT_CRC inline uint64_t crc_word(uint64_t state, uint64_t x) { return _mm_crc32_u64(state, x); }
DCT_CRC inline uint32_t crc_byte(uint32_t state, uint8_t x) { return _mm_crc32_u8(state, x); }
inline bool has_crc() { return __builtin_cpu_supports("sse4.2"); }
#else
DCT_CRC inline uint64_t crc_word(uint64_t state, uint64_t x) { return __crc32cd(uint32_t(state), x); }
DCT_CRC inline uint32_t crc_byte(uint32_t state, uint8_t x) { return __crc32cb(state, x); }
inline bool has_crc() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_CRC32;
#else
  return true;  // every processor of Apple's has it
#endif
}
#endif

inline uint64_t crc_load(const uint8_t* bytes) {
  uint64_t x;
  std::memcpy(&x, bytes, 8);
  return x;
}

// The state after three stretches of shift.bytes each.
DCT_CRC inline uint32_t crc_of_three(uint32_t state, const uint8_t* bytes, const CrcShift& shift) {
  uint64_t a = state, b = 0, c = 0;
  const int64_t n = shift.bytes;
  for (int64_t i = 0; i < n; i += 8) {
    a = crc_word(a, crc_load(bytes + i));
    b = crc_word(b, crc_load(bytes + n + i));
    c = crc_word(c, crc_load(bytes + 2 * n + i));
  }
  return shift(shift(uint32_t(a)) ^ uint32_t(b)) ^ uint32_t(c);
}

// As crc_by_tables, where has_crc().
DCT_CRC inline uint32_t crc_by_instruction(uint32_t state, const uint8_t* bytes, int64_t n) {
  static const CrcShift shifts[] = {CrcShift(4096), CrcShift(256)};
  for (const CrcShift& shift : shifts) {
    for (; n >= 3 * shift.bytes; n -= 3 * shift.bytes, bytes += 3 * shift.bytes) {
      state = crc_of_three(state, bytes, shift);
    }
  }
  uint64_t wide = state;
  for (; n >= 8; n -= 8, bytes += 8) wide = crc_word(wide, crc_load(bytes));
  state = uint32_t(wide);
  for (; n > 0; --n) state = crc_byte(state, *bytes++);
  return state;
}

#else
inline bool has_crc() { return false; }
inline uint32_t crc_by_instruction(uint32_t state, const uint8_t* bytes, int64_t n) {
  return crc_by_tables(state, bytes, n);
}
#endif

// CRC32C of n bytes that follow others, whose CRC32C is `before`. `tables`: without the instruction, for tests.
inline uint32_t crc32c(uint32_t before, const void* bytes, int64_t n, bool tables = false) {
  static const bool instruction = has_crc();
  const auto* from = static_cast<const uint8_t*>(bytes);
  return ~(instruction && !tables ? crc_by_instruction(~before, from, n) : crc_by_tables(~before, from, n));
}

}  // namespace dct
