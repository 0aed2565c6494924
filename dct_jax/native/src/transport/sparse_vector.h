// Sparse streams in the sense of SparCML: vectors that are sparse or dense, and know which.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/memory.h"
#include "common/wire.h"

namespace dct {

// An operation on values of type T, and its neutral element.
template <typename T, Op op>
struct Operation {
  static constexpr Op kOp = op;
  static T neutral() {
    if constexpr (op == Op::kMax) {
      return std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity()
                                         : std::numeric_limits<T>::lowest();
    } else if constexpr (op == Op::kMin) {
      return std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity()
                                         : std::numeric_limits<T>::max();
    } else {
      return op == Op::kProduct ? T(1) : T(0);
    }
  }
  static T apply(T a, T b) {
    if constexpr (op == Op::kMax) return a < b || b != b ? b : a;  // what is not a number stays: as in NumPy
    if constexpr (op == Op::kMin) return b < a || b != b ? b : a;
    if constexpr (op == Op::kProduct) return a * b;
    if constexpr (op == Op::kOr) {
      if constexpr (std::is_integral_v<T>) return a | b;
      return T(a != T(0) || b != T(0));
    }
    return a + b;
  }
};

// The coordinates [begin, begin + size) of a vector. Sparse: `count` strictly increasing positions
// (from `begin`) and their values. Dense: `size` values.
template <typename T>
struct Vec {
  int64_t begin = 0, size = 0, count = 0;
  bool dense = false;
  const uint32_t* index = nullptr;
  const T* value = nullptr;
  Block<uint32_t> own_index;  // what the pointers lead to, unless somebody else's memory
  Block<T> own_value;

  // Takes n entries over.
  void own(Block<uint32_t> indices, Block<T> values, int64_t n) {
    own_index = std::move(indices);
    own_value = std::move(values);
    index = own_index.begin();
    value = own_value.begin();
    count = n;
    dense = false;
  }
  // Takes `size` values over.
  void own_dense(Block<T> values) {
    own_value = std::move(values);
    own_index = {};
    index = nullptr;
    value = own_value.begin();
    count = size;
    dense = true;
  }
};

// to = op(to, b), where `to` has b.size values.
template <typename O, typename T>
void apply_to(T* to, const Vec<T>& b) {
  if (b.dense) {
    for (int64_t i = 0; i < b.size; ++i) to[i] = O::apply(to[i], b.value[i]);
  } else {
    for (int64_t i = 0; i < b.count; ++i) to[b.index[i]] = O::apply(to[b.index[i]], b.value[i]);
  }
}

// Combines sparse vectors, in their order, window by window: the sums of a window's coordinates and who is there
// stay in the cache, whatever the density, where merging by comparisons would guess wrong at every entry. `index` and
// `value` have room for all entries of all vectors. Returns the number of entries.
template <typename O, typename T>
int64_t merge_windows(const std::vector<const Vec<T>*>& parts, uint32_t* index, T* value) {
  constexpr uint64_t kWindow = 1 << 14;
  T sum[kWindow];
  uint64_t there[kWindow / 64] = {};
  std::vector<int64_t> at(parts.size());
  int64_t n = 0;
  for (;;) {
    uint64_t next = UINT64_MAX;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (at[p] < parts[p]->count) next = std::min(next, uint64_t(parts[p]->index[at[p]]));
    }
    if (next == UINT64_MAX) return n;
    const uint64_t begin = next & ~(kWindow - 1), end = begin + kWindow;
    for (size_t p = 0; p < parts.size(); ++p) {
      const Vec<T>& v = *parts[p];
      int64_t i = at[p];
      for (; i < v.count && v.index[i] < end; ++i) {
        const uint64_t c = v.index[i] - begin, bit = uint64_t(1) << (c & 63);
        const T before = there[c >> 6] & bit ? sum[c] : O::neutral();
        there[c >> 6] |= bit;
        sum[c] = O::apply(before, v.value[i]);
      }
      at[p] = i;
    }
    for (uint64_t w = (next - begin) >> 6; w < kWindow / 64; ++w) {
      for (uint64_t bits = there[w]; bits; bits &= bits - 1) {
        const uint64_t c = w * 64 + uint64_t(__builtin_ctzll(bits));
        *index++ = uint32_t(begin + c);
        *value++ = sum[c];
        ++n;
      }
      there[w] = 0;
    }
  }
}

// Combines vectors of the same coordinates, at least one, in their order: op(op(op(neutral, v0), v1), ...). So the
// result does not depend on which of the ways below is taken. It becomes dense when the sum of the
// counts exceeds `delta` (a bound of the union that costs nothing), or when one input is.
template <typename O, typename T>
Vec<T> combine(std::vector<const Vec<T>*> parts, int64_t delta) {
  Vec<T> out;
  out.begin = parts[0]->begin;
  out.size = parts[0]->size;
  int64_t total = 0;
  bool dense = false;
  for (const Vec<T>* p : parts) {
    total += p->count;
    dense |= p->dense;
  }
  if (dense || total > delta) {
    Block<T> sum(out.size);
    std::fill(sum.begin(), sum.end(), O::neutral());
    for (const Vec<T>* p : parts) apply_to<O>(sum.begin(), *p);
    out.own_dense(std::move(sum));
    return out;
  }
  Block<uint32_t> index(total);
  Block<T> value(total);
  const int64_t n = merge_windows<O, T>(parts, index.begin(), value.begin());
  out.own(std::move(index), std::move(value), n);
  return out;
}

// The coordinates [begin, begin + size) of `whole`, whose values must stay where they are.
template <typename T>
Vec<T> slice(const Vec<T>& whole, int64_t begin, int64_t size) {
  Vec<T> out;
  out.begin = begin;
  out.size = size;
  const int64_t offset = begin - whole.begin;
  if (whole.dense) {
    out.dense = true;
    out.count = size;
    out.value = whole.value + offset;
    return out;
  }
  const uint32_t* from = std::lower_bound(whole.index, whole.index + whole.count, uint32_t(offset));
  const uint32_t* to = std::lower_bound(from, whole.index + whole.count, uint32_t(offset + size));
  Block<uint32_t> index(to - from);
  for (int64_t i = 0; i < index.size; ++i) index[i] = from[i] - uint32_t(offset);
  out.own_index = std::move(index);
  out.index = out.own_index.begin();
  out.value = whole.value + (from - whole.index);
  out.count = to - from;
  return out;
}

// How many coordinates somebody has sent, as far as one can tell: dense, those that are not neutral.
template <typename O, typename T>
int64_t present(const Vec<T>& v) {
  if (!v.dense) return v.count;
  return v.size - int64_t(std::count(v.value, v.value + v.size, O::neutral()));
}

}  // namespace dct
