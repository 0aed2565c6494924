// Messages of sparse streams as docs/wire_format.md defines them: sizes, encoder, checked decoder.
#pragma once

#include <vector>

#include "common/integers.h"
#include "common/values.h"
#include "kernels/checksum.h"

namespace dct {

// The smallest and the largest Rice parameter that are tried: at most four, around the best one for even gaps.
struct RiceRange {
  int first, last;
  RiceRange(int64_t count, int64_t universe) {
    int b0 = count ? floor_log2(uint64_t(std::max<int64_t>(1, universe / count))) : 0;
    first = std::max(0, b0 - 2);
    last = count ? b0 + 1 : 0;
  }
};

// Words of `count` Rice codes whose quotients add up to `quotients`.
inline int64_t rice_words(int64_t count, int64_t quotients, int b) {
  return ceil_div(count + quotients, 32) + ceil_div(count * b, 32);
}

// How indices travel, and the words that this takes.
struct IndexChoice {
  uint32_t codec;
  int rice;
  int64_t words;
};

// Takes a codec if it is allowed and shorter than the best one so far.
inline void better(IndexChoice* best, uint32_t wish, uint32_t codec, int rice, int64_t words) {
  if ((wish == kAuto || wish == codec) && words < best->words) *best = {codec, rice, words};
}

// The shortest codec for these indices, or the one that was wished for, and its exact size. Indices must be strictly
// increasing and below the universe.
inline IndexChoice choose_codec(const uint32_t* index, int64_t count, int64_t universe,
                                uint32_t wish) {
  RiceRange range(count, universe);
  int64_t quotients[4] = {0, 0, 0, 0}, skips = 0;
  if (wish == kAuto || wish == kRice || wish == kGap16) {
    uint32_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t gap = index[i] - next;
      next = index[i] + 1;
      skips += gap / 65535;
      for (int j = 0; j < 4; ++j) quotients[j] += gap >> (range.first + j);
    }
  }
  IndexChoice best{kNone, 0, INT64_MAX};
  better(&best, wish, kInt32, 0, count);
  better(&best, wish, kGap16, 0, ceil_div(count + skips, 2));
  better(&best, wish, kBitmap, 0, ceil_div(universe, 32));
  for (int b = range.first; b <= range.last; ++b) {
    better(&best, wish, kRice, b, rice_words(count, quotients[b - range.first], b));
  }
  return best;
}

// Words that any `count` indices fit into.
inline int64_t index_bound(int64_t count, int64_t universe, uint32_t wish) {
  if (!count && wish != kBitmap) return 0;
  RiceRange range(count, universe);
  IndexChoice best{kNone, 0, INT64_MAX};
  better(&best, wish, kInt32, 0, count);
  better(&best, wish, kGap16, 0, ceil_div(count + universe / 65535, 2));
  better(&best, wish, kBitmap, 0, ceil_div(universe, 32));
  for (int b = range.first; b <= range.last; ++b) {
    better(&best, wish, kRice, b, rice_words(count, universe >> b, b));
  }
  return best.words;
}

// Gaps of 16 bits, two a word; 65535 skips as many and says that more follows.
inline void write_gap16(const uint32_t* index, int64_t count, uint32_t* words) {
  int64_t token = 0;
  auto put = [&](uint32_t t) {
    words[token / 2] |= t << (16 * (token & 1));
    ++token;
  };
  uint32_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t gap = index[i] - next;
    next = index[i] + 1;
    for (; gap >= 65535; gap -= 65535) put(65535);
    put(gap);
  }
}

// Quotients in unary, then remainders of b bits; `section` words in all.
inline void write_rice(const uint32_t* index, int64_t count, int b, int64_t section,
                       uint32_t* words) {
  uint32_t* remainders = words + (section - ceil_div(count * b, 32));
  int64_t bit = 0, low_bits = 0;
  uint64_t pending = 0;
  uint32_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t gap = index[i] - next;
    next = index[i] + 1;
    bit += gap >> b;
    words[bit >> 5] |= 1u << (bit & 31);
    ++bit;
    pending |= uint64_t(gap & ((1u << b) - 1)) << (low_bits & 31);
    low_bits += b;
    if ((low_bits - b) >> 5 != low_bits >> 5) {
      *remainders++ = uint32_t(pending);
      pending >>= 32;
    }
  }
  if (low_bits & 31) *remainders = uint32_t(pending);
}

// Writes what choose_codec chose. `words` has room for choice.words of them, all zero.
inline void write_indices(const uint32_t* index, int64_t count, const IndexChoice& choice,
                          uint32_t* words) {
  if (choice.codec == kInt32) {
    std::copy_n(index, count, words);
  } else if (choice.codec == kGap16) {
    write_gap16(index, count, words);
  } else if (choice.codec == kBitmap) {
    for (int64_t i = 0; i < count; ++i) words[index[i] >> 5] |= 1u << (index[i] & 31);
  } else {
    write_rice(index, count, choice.rice, choice.words, words);
  }
}

// A message that has been checked from end to end. Pointers lead into the message's own words.
struct Stream {
  bool ok = false;
  std::vector<uint32_t> index;
  const uint32_t* values = nullptr;
  const uint32_t* dense = nullptr;  // nullptr: the message is empty
};

// Each reader gets a section of exactly `words` words, fills `index` and says whether the section holds that many
// indices and no more, strictly increasing and below the universe. It reads nothing outside of the section, whatever
// is in there.
inline bool read_int32(const uint32_t* section, int64_t words, int64_t universe,
                       std::vector<uint32_t>* index) {
  int64_t last = -1;
  for (int64_t i = 0; i < words; ++i) {
    if (int64_t(section[i]) <= last || section[i] >= uint64_t(universe)) return false;
    last = (*index)[size_t(i)] = section[i];
  }
  return true;
}

inline bool read_gap16(const uint32_t* section, int64_t words, int64_t universe,
                       std::vector<uint32_t>* index) {
  int64_t next = 0, found = 0, count = int64_t(index->size()), token = 0;
  while (found < count) {
    if (token == 2 * words) return false;
    uint32_t t = (section[token / 2] >> (16 * (token & 1))) & 0xFFFF;
    ++token;
    next += t;
    if (next >= universe) return false;
    if (t != 65535) (*index)[size_t(found++)] = uint32_t(next++);
  }
  return ceil_div(token, 2) == words;
}

inline bool read_bitmap(const uint32_t* section, int64_t words, int64_t universe,
                        std::vector<uint32_t>* index) {
  size_t found = 0;
  for (int64_t w = 0; w < words; ++w) {
    for (uint32_t bits = section[w]; bits; bits &= bits - 1) {
      int64_t i = 32 * w + __builtin_ctz(bits);
      if (i >= universe || found == index->size()) return false;
      (*index)[found++] = uint32_t(i);
    }
  }
  return found == index->size();
}

inline bool read_rice(const uint32_t* section, int64_t words, int64_t universe, int b,
                      std::vector<uint32_t>* index) {
  if (b < 0 || b > 31) return false;
  const int64_t count = int64_t(index->size()), unary_words = words - ceil_div(count * b, 32);
  if (unary_words < 0) return false;
  const uint32_t* low = section + unary_words;
  const uint64_t mask = (uint64_t(1) << b) - 1;
  int64_t found = 0, next = 0, previous = -1;
  for (int64_t w = 0; w < unary_words; ++w) {
    for (uint32_t bits = section[w]; bits; bits &= bits - 1) {
      int64_t at = 32 * w + __builtin_ctz(bits), position = found * b;
      if (found == count) return false;
      int64_t word = position >> 5;
      uint64_t window = b ? low[word] : 0;
      if ((position & 31) + b > 32) window |= uint64_t(low[word + 1]) << 32;
      const int64_t quotient = at - previous - 1;
      if (quotient > universe >> b) return false;  // before it is shifted out of its 64 bits
      next += (quotient << b) + int64_t((window >> (position & 31)) & mask);
      previous = at;
      if (next >= universe) return false;
      (*index)[size_t(found++)] = uint32_t(next++);
    }
  }
  return found == count && ceil_div(previous + 1, 32) == unary_words;
}

// The reader of a codec, for sections of any number of words. Says no to a codec that it does not know, and to a Rice
// parameter `b` outside of [0, 31]; the other codecs do not use it.
inline bool read_indices(uint32_t codec, int b, const uint32_t* section, int64_t words,
                         int64_t universe, std::vector<uint32_t>* index) {
  if (codec == kInt32) {
    return words == int64_t(index->size()) && read_int32(section, words, universe, index);
  }
  if (codec == kGap16) return read_gap16(section, words, universe, index);
  if (codec == kBitmap) {
    return words == ceil_div(universe, 32) && read_bitmap(section, words, universe, index);
  }
  return codec == kRice && read_rice(section, words, universe, b, index);
}

// Reads a message in a buffer of `capacity` words. Trusts nothing: every size is checked against the buffer before
// anything is read by it. The result is `ok` when all of it fits the universe, unit, dense words and values that the
// receiver expects.
inline Stream read_message(const uint32_t* words, int64_t capacity, int64_t universe, int64_t unit,
                           int64_t dense_words, Values values) {
  Stream stream;
  if (capacity < kHeader || (words[word::kKind] & 0xFFFF0000) != kMagic) return stream;
  const int64_t length = words[word::kLength], count = words[word::kCount];
  const uint32_t codec = (words[word::kKind] >> 8) & 0xFF;
  if (length < kHeader || length > capacity || count > universe) return stream;
  if ((words[word::kKind] & 0xFF) != uint32_t(values)) return stream;
  if (checksum(words, length) != words[word::kChecksum]) return stream;
  if (codec == kNone) {
    stream.ok = count == 0 && length == kHeader;
    return stream;
  }
  int64_t section = length - kHeader - dense_words - value_words(count * unit, values);
  if (section < 0) return stream;
  stream.dense = words + kHeader;
  stream.values = words + (length - value_words(count * unit, values));
  stream.index.resize(size_t(count));
  stream.ok = read_indices(codec, int(words[word::kFlags] >> 24), stream.dense + dense_words, section,
                           universe, &stream.index);
  return stream;
}

}  // namespace dct
