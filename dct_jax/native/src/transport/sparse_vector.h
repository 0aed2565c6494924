// Sparse streams in the sense of SparCML: vectors that are sparse or dense, and know which.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "transport/channel.h"
#include "kernels/stream.h"

namespace dct {

// Coordinate-wise operations with a neutral element; a coordinate that is not there is neutral.
enum class Op : int64_t { kSum = 0, kMax = 1, kMin = 2, kProduct = 3, kOr = 4 };

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

  void own(Block<uint32_t> indices, Block<T> values, int64_t n) {
    own_index = std::move(indices);
    own_value = std::move(values);
    index = own_index.begin();
    value = own_value.begin();
    count = n;
    dense = false;
  }
  void own_dense(Block<T> values) {
    own_value = std::move(values);
    own_index = {};
    index = nullptr;
    value = own_value.begin();
    count = size;
    dense = true;
  }
};

// Scatter b into a dense block of a's coordinates.
template <typename O, typename T>
void apply_to(T* to, const Vec<T>& b) {
  if (b.dense) {
    for (int64_t i = 0; i < b.size; ++i) to[i] = O::apply(to[i], b.value[i]);
  } else {
    for (int64_t i = 0; i < b.count; ++i) to[b.index[i]] = O::apply(to[b.index[i]], b.value[i]);
  }
}

// Sparse vectors combined, in their order, window by window: the sums of a window's coordinates and who is there
// stay in the cache, whatever the density, where merging by comparisons would guess wrong at every entry. Returns the
// number of entries.
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

// Vectors of the same coordinates, combined in their order: op(op(op(neutral, v0), v1), ...). So the
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

// The coordinates [begin, begin + size) of `whole`.
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

// Numbers that travel with every vector, so that all workers know them at the end.
struct Meta {
  uint64_t nonfinite = 0, corrupt = 0;  // workers
  uint64_t wanted = 0;                  // words of the longest message
  uint64_t encoded = 0, missing = 0;    // words of all messages
  uint64_t entries = 0;                 // of all messages
  uint64_t sent = 0;                    // bytes that these workers have sent, frame heads included
  uint64_t present = 0;                 // coordinates of the result that somebody has sent

  void add(const Meta& other) {
    nonfinite += other.nonfinite;
    corrupt += other.corrupt;
    wanted = std::max(wanted, other.wanted);
    encoded += other.encoded;
    missing += other.missing;
    entries += other.entries;
    sent += other.sent;
    present += other.present;
  }
};

enum class Form : uint32_t { kSparse = 0, kDense = 1, kQuantized = 2 };

// A vector as it travels: this head, index words, values.
struct ParcelHead {
  Form form;
  uint32_t codec, rice, pad = 0;
  int64_t count, index_words;
  Meta meta;
};

// A vector on its way out; the values are sent from where they lie.
template <typename T>
struct Parcel {
  ParcelHead head;
  Block<uint32_t> words;  // indices, or quantized values
  Piece values{nullptr, 0};

  std::vector<Piece> pieces() const {
    return {{&head, sizeof head}, {words.begin(), 4 * words.size}, values};
  }
  int64_t bytes() const { return kFrameHead + int64_t(sizeof head) + 4 * words.size + values.bytes; }
};

template <typename T>
Parcel<T> wrap(const Vec<T>& v, uint32_t index_codec, const Meta& meta) {
  Parcel<T> parcel;
  if (v.dense) {
    parcel.head = {Form::kDense, 0, 0, 0, v.size, 0, meta};
    parcel.values = {v.value, v.size * int64_t(sizeof(T))};
    return parcel;
  }
  IndexChoice choice = v.count ? choose_codec(v.index, v.count, v.size, index_codec)
                               : IndexChoice{kNone, 0, 0};
  parcel.words = Block<uint32_t>(choice.words);
  std::fill(parcel.words.begin(), parcel.words.end(), 0u);
  if (v.count) write_indices(v.index, v.count, choice, parcel.words.begin());
  parcel.head = {Form::kSparse, choice.codec, uint32_t(choice.rice), 0, v.count, choice.words, meta};
  parcel.values = {v.value, v.count * int64_t(sizeof(T))};
  return parcel;
}

inline const ParcelHead& head_of(const Block<uint8_t>& frame) {
  if (frame.size < int64_t(sizeof(ParcelHead))) throw Failure("a frame is too short for its head");
  return *reinterpret_cast<const ParcelHead*>(frame.begin());
}

// Copies the values out of a frame, where they need not be aligned.
template <typename T>
Block<T> read_values(const Block<uint8_t>& frame, int64_t offset, int64_t count) {
  if (frame.size != offset + count * int64_t(sizeof(T))) throw Failure("a frame has another length than it says");
  Block<T> values(count);
  std::memcpy(values.begin(), frame.begin() + offset, size_t(count) * sizeof(T));
  return values;
}

template <typename T>
Vec<T> unwrap(const Block<uint8_t>& frame, int64_t begin, int64_t size) {
  const ParcelHead& head = head_of(frame);
  Vec<T> out;
  out.begin = begin;
  out.size = size;
  const int64_t at = sizeof(ParcelHead) + 4 * head.index_words;
  if (head.count < 0 || head.count > size || head.index_words < 0 || at > frame.size) {
    throw Failure("a frame does not fit its vector");
  }
  if (head.form == Form::kDense) {
    if (head.count != size) throw Failure("a dense frame does not fit its vector");
    out.own_dense(read_values<T>(frame, at, size));
    return out;
  }
  std::vector<uint32_t> index(static_cast<size_t>(head.count));
  auto section = reinterpret_cast<const uint32_t*>(frame.begin() + sizeof(ParcelHead));
  if (head.count && !read_indices(head.codec, int(head.rice), section, head.index_words, size, &index)) {
    throw Failure("a frame has indices that cannot be read");
  }
  Block<uint32_t> indices(head.count);
  std::copy(index.begin(), index.end(), indices.begin());
  out.own(std::move(indices), read_values<T>(frame, at, head.count), head.count);
  return out;
}

}  // namespace dct
