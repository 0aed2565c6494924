// Units of coordinates, which a worker has all of or none of, and bitmaps of them: one bit a unit.
//
// Bitmaps of other workers come from outside: `check_bitmap` and `has_all` say whether one is believed. What follows
// from a bitmap that is believed stays within its vector.
#pragma once

#include <vector>

#include "common/integers.h"
#include "transport/parcel.h"

namespace dct {

using Bitmap = Block<uint32_t>;  // unit u is bit u % 32 of word u / 32

// How the coordinates of a vector fall into units, in their order.
class Units {
 public:
  // Appends `size` coordinates in units of `unit`, of which the last may be shorter. Nothing is appended for size 0.
  void append(int64_t size, int64_t unit) {
    if (!size) return;
    const int64_t first = count_;
    count_ += ceil_div(size, unit);
    runs_.push_back({end_, end_ + size, unit, first, count_});
    end_ += size;
  }

  int64_t count() const { return count_; }
  int64_t words() const { return ceil_div(count_, 32); }

  // The units that a vector has coordinates of; all of a dense one's.
  template <typename T>
  Bitmap bitmap_of(const Vec<T>& v) const {
    Bitmap bits(words());
    std::fill(bits.begin(), bits.end(), v.dense ? ~0u : 0u);
    if (v.dense && count_ % 32) bits[words() - 1] = (1u << count_ % 32) - 1;
    int64_t i = 0;
    for (const Run& run : runs_) {
      for (; !v.dense && i < v.count && v.index[i] < run.end; ++i) {
        const int64_t offset = v.index[i] - run.begin;
        const int64_t u = run.first + (run.unit == 1 ? offset : offset / run.unit);
        bits[u >> 5] |= 1u << (u & 31);
      }
    }
    return bits;
  }

  // The coordinates of the units in a bitmap, increasing. No bit behind the last unit may be set.
  Block<uint32_t> coordinates_of(const Bitmap& bits) const {
    int64_t total = 0;
    each(bits, [&](int64_t begin, int64_t end) { total += end - begin; });
    Block<uint32_t> out(total);
    uint32_t* to = out.begin();
    each(bits, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) *to++ = uint32_t(c);
    });
    return out;
  }

 private:
  struct Run {
    int64_t begin, end, unit, first, last;  // coordinates; their length; numbers of units
  };

  // Calls body(begin, end) with the coordinates of each unit in a bitmap.
  template <typename Body>
  void each(const Bitmap& bits, const Body& body) const {
    auto run = runs_.begin();
    for (int64_t w = 0; w < bits.size; ++w) {
      for (uint32_t left = bits[w]; left; left &= left - 1) {
        const int64_t u = 32 * w + __builtin_ctz(left);
        while (u >= run->last) ++run;
        const int64_t begin = run->begin + (u - run->first) * run->unit;
        body(begin, std::min(begin + run->unit, run->end));
      }
    }
  }

  std::vector<Run> runs_;
  int64_t count_ = 0, end_ = 0;
};

// Throws BadParcel if a piece of a bitmap of `count` units has bits behind the last one.
inline void check_bitmap(const Vec<uint32_t>& piece, int64_t count) {
  if (count % 32 == 0) return;
  for (int64_t i = piece.count; i-- > 0;) {
    const int64_t w = piece.begin + (piece.dense ? i : int64_t(piece.index[i]));
    if (w != count / 32) return;  // only the last word can have such bits
    if (piece.value[i] >> count % 32) throw BadParcel("its bitmap has bits behind the last unit");
  }
}

// Whether the words [begin, begin + size) of `all` have all bits of `some`.
inline bool has_all(const Bitmap& all, const Bitmap& some, int64_t begin, int64_t size) {
  uint32_t missing = 0;
  for (int64_t w = begin; w < begin + size; ++w) missing |= some[w] & ~all[w];
  return !missing;
}

// A vector's values by the rank of their coordinates in `at`, which has all of them; neutral at the others.
template <typename O, typename T>
Block<T> values_at(const Vec<T>& v, const Block<uint32_t>& at) {
  Block<T> out(at.size);
  if (v.dense) {
    std::copy_n(v.value, at.size, out.begin());
    return out;
  }
  std::fill(out.begin(), out.end(), O::neutral());
  for (int64_t i = 0, rank = 0; i < v.count; ++i, ++rank) {
    while (at[rank] != v.index[i]) ++rank;
    out[rank] = v.value[i];
  }
  return out;
}

}  // namespace dct
