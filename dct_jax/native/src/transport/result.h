// The result of a reduction, and how it is written to where it goes.
#pragma once

#include "transport/parcel.h"
#include "transport/sparse_vector.h"

namespace dct {

// The result: pieces with increasing, disjoint ranges that cover all coordinates.
template <typename T>
struct Result {
  std::vector<Vec<T>> pieces;
  Meta meta;
};

// Writes the coordinates [begin, begin + size) of a result to `to`, `neutral` where it has none.
template <typename T>
void fill_range(const Result<T>& result, int64_t begin, int64_t size, T* to, T neutral) {
  for (const Vec<T>& piece : result.pieces) {
    const int64_t first = std::max(begin, piece.begin);
    const int64_t last = std::min(begin + size, piece.begin + piece.size);
    if (first >= last) continue;
    if (piece.dense) {
      std::copy_n(piece.value + (first - piece.begin), last - first, to + (first - begin));
      continue;
    }
    std::fill_n(to + (first - begin), last - first, neutral);
    const uint32_t* end = piece.index + piece.count;
    const uint32_t* at = std::lower_bound(piece.index, end, uint32_t(first - piece.begin));
    for (; at != end && *at < last - piece.begin; ++at) {
      to[piece.begin + *at - begin] = piece.value[at - piece.index];
    }
  }
}

// Writes what is not neutral in a dense piece, and returns its number. Every entry is written, and kept by moving on, so
// that nothing has to be guessed; into a window, as there may be no room behind the last one.
template <typename O, typename T>
int64_t write_present(const Vec<T>& piece, uint32_t* index, T* value) {
  constexpr int64_t kWindow = 512;
  uint32_t places[kWindow];
  T values[kWindow];
  int64_t n = 0;
  for (int64_t begin = 0; begin < piece.size; begin += kWindow) {
    const int64_t end = std::min(piece.size, begin + kWindow);
    int64_t m = 0;
    for (int64_t i = begin; i < end; ++i) {
      places[m] = uint32_t(piece.begin + i);
      values[m] = piece.value[i];
      m += piece.value[i] != O::neutral();
    }
    std::copy_n(places, m, index + n);
    std::copy_n(values, m, value + n);
    n += m;
  }
  return n;
}

// Writes a result as indices and values, and returns their number, or -1 (and nothing is written) when it exceeds
// `capacity`. What is neutral in a dense piece is left out: absent means the same, and there may be no room for all
// coordinates.
template <typename O, typename T>
int64_t write_stream(const Result<T>& result, int64_t capacity, uint32_t* index, T* value) {
  int64_t n = 0;
  for (const Vec<T>& piece : result.pieces) n += present<O>(piece);
  if (n > capacity) return -1;
  for (const Vec<T>& piece : result.pieces) {
    if (piece.dense) {
      const int64_t found = write_present<O>(piece, index, value);
      index += found;
      value += found;
      continue;
    }
    for (int64_t i = 0; i < piece.count; ++i) *index++ = uint32_t(piece.begin + piece.index[i]);
    value = std::copy_n(piece.value, piece.count, value);
  }
  return n;
}

}  // namespace dct
