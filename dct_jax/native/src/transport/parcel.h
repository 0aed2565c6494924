// Parcels: vectors as they travel between workers, each with numbers that all shall know at the end.
//
// A parcel is a head, index words, values. Reading one is a function of bytes that come from outside: it believes
// nothing that it has not checked, and touches nothing behind the last byte.
#pragma once

#include <cstring>

#include "kernels/qsgd.h"
#include "kernels/stream.h"
#include "transport/frame.h"
#include "transport/sparse_vector.h"

namespace dct {

// Numbers that travel with every vector, so that all workers know them at the end.
struct Meta {
  uint64_t nonfinite = 0, corrupt = 0;  // workers
  uint64_t wanted = 0;                  // words of the longest message
  uint64_t encoded = 0, missing = 0;    // words of all messages
  uint64_t entries = 0;                 // of all messages
  uint64_t sent = 0;                    // bytes that these workers have sent, all of their frames
  uint64_t present = 0;                 // coordinates of the result that somebody has sent

  // Takes in what other workers know.
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

  // Whether so many workers can have come to these numbers for a vector of `size` coordinates. Sums of plausible
  // numbers stay far below 2^63.
  bool plausible(int workers, int64_t size) const {
    constexpr uint64_t kFar = uint64_t(1) << 48;
    return std::max(nonfinite, corrupt) <= uint64_t(workers) && present <= uint64_t(size) &&
           std::max({wanted, encoded, missing, entries, sent}) < kFar;
  }
};

enum class Form : uint32_t { kSparse = 0, kDense = 1, kQuantized = 2 };

struct ParcelHead {
  Form form;
  uint32_t codec, rice, pad = 0;  // of a sparse vector's indices; zero elsewhere
  int64_t count, index_words;     // entries; words before the values, which for kQuantized are all that there is
  Meta meta;
};
static_assert(sizeof(ParcelHead) == 96);

// How QSGD writes a vector. bits = 0: it does not.
struct Quantization {
  int bits = 0;
  int64_t bucket = 0;
  uint32_t seed = 0;
};

// A vector on its way out. Its values are sent from where they lie, and must stay there.
template <typename T>
struct Parcel {
  ParcelHead head;
  Block<uint32_t> words;  // indices, or quantized values
  Piece values{nullptr, 0};

  std::vector<Piece> pieces() const {
    return {{&head, sizeof head}, {words.begin(), 4 * words.size}, values};
  }

  // Bytes on the wire, all of the frame included.
  int64_t bytes() const { return kFrameBytes + int64_t(sizeof head) + 4 * words.size + values.bytes; }
};

// A vector as it is: dense, or sparse with indices in the codec that is wished for (kAuto: the shortest).
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

// A dense vector, quantized. What the others will read replaces its values, or replicas would differ.
inline Parcel<float> wrap_quantized(Vec<float>* v, const Quantization& by, const Meta& meta) {
  Parcel<float> parcel;
  parcel.words = Block<uint32_t>(qsgd_words(v->size, by.bits, by.bucket));
  parcel.head = {Form::kQuantized, 0, 0, 0, v->size, parcel.words.size, meta};
  qsgd_quantize(v->value, v->size, v->begin, by.seed, by.bits, by.bucket, parcel.words.begin());
  Block<float> decoded(v->size);
  qsgd_dequantize(parcel.words.begin(), v->size, by.bits, by.bucket, decoded.begin());
  v->own_dense(std::move(decoded));
  return parcel;
}

// Why a parcel is not believed. What it says goes on after "a frame that cannot be read: ".
class BadParcel : public Failure {
 public:
  using Failure::Failure;
};

// What a receiver knows of a parcel before it comes.
struct Expected {
  int64_t begin, size;        // coordinates of the vector
  int workers;                // of the group
  Quantization quantization;  // bits = 0: a quantized vector is not believed
};

// Bytes that no parcel of `size` coordinates exceeds: no codec takes more than a word an index, but for what it rounds
// up.
template <typename T>
int64_t most_bytes(int64_t size) {
  return int64_t(sizeof(ParcelHead)) + 4 * (size + 2) + size * int64_t(sizeof(T));
}

// Reads `count` values that are all that `bytes` holds. They need not be aligned.
template <typename T>
Block<T> read_values(const uint8_t* bytes, int64_t length, int64_t count) {
  if (length % int64_t(sizeof(T)) || length / int64_t(sizeof(T)) != count) {
    throw BadParcel("it has another length than its values");
  }
  Block<T> values(count);
  std::memcpy(values.begin(), bytes, size_t(length));
  return values;
}

// The head of a parcel of `length` bytes. When this returns, every number in it is in its range, and `index_words`
// words lie within the parcel. Throws BadParcel otherwise.
inline ParcelHead read_head(const uint8_t* bytes, int64_t length, const Expected& expected) {
  ParcelHead head;
  if (length < int64_t(sizeof head)) throw BadParcel("it is too short for its head");
  std::memcpy(&head, bytes, sizeof head);
  const bool sparse = head.form == Form::kSparse, quantized = head.form == Form::kQuantized;
  if (head.form > Form::kQuantized || (quantized && !expected.quantization.bits)) {
    throw BadParcel("it has a form that nobody asked for");
  }
  if (head.count < 0 || head.count > expected.size || (!sparse && head.count != expected.size)) {
    throw BadParcel("its number of entries does not fit the vector");
  }
  if (head.index_words < 0 || head.index_words > (length - int64_t(sizeof head)) / 4) {
    throw BadParcel("it is too short for its indices");
  }
  const uint32_t least = sparse && head.count ? kInt32 : kNone, most = least ? kRice : kNone;
  if (head.codec < least || head.codec > most || head.rice > (head.codec == kRice ? 31u : 0u) || head.pad) {
    throw BadParcel("its index codec is unknown");
  }
  if (head.codec == kNone && !quantized && head.index_words) throw BadParcel("it has words that mean nothing");
  if (!head.meta.plausible(expected.workers, expected.size)) throw BadParcel("its accounts are impossible");
  return head;
}

// The values of a quantized parcel: all words behind its head.
inline Block<float> read_quantized(const uint32_t* words, int64_t count, int64_t size, const Quantization& by) {
  if (count != qsgd_words(size, by.bits, by.bucket)) throw BadParcel("it has another length than its values");
  if (!qsgd_scales_valid(words, size, by.bucket)) throw BadParcel("its scales are no finite numbers");
  Block<float> values(size);
  qsgd_dequantize(words, size, by.bits, by.bucket, values.begin());
  return values;
}

// Reads a parcel of `length` bytes; `bytes` is aligned to words. Throws BadParcel unless it is one that a worker of
// this exchange can have written, with strictly increasing indices below the size. `meta` gets its numbers.
template <typename T>
Vec<T> read_parcel(const uint8_t* bytes, int64_t length, const Expected& expected, Meta* meta) {
  const ParcelHead head = read_head(bytes, length, expected);
  Vec<T> out;
  out.begin = expected.begin;
  out.size = expected.size;
  *meta = head.meta;
  const auto* words = reinterpret_cast<const uint32_t*>(bytes + sizeof head);
  const uint8_t* rest = bytes + sizeof head + 4 * head.index_words;
  const int64_t left = bytes + length - rest;
  if (head.form == Form::kQuantized) {
    if constexpr (std::is_same_v<T, float>) {
      if (left) throw BadParcel("it has another length than it says");
      out.own_dense(read_quantized(words, head.index_words, out.size, expected.quantization));
      return out;
    }
    throw BadParcel("it has a form that nobody asked for");
  }
  Block<T> values = read_values<T>(rest, left, head.count);
  if (head.form == Form::kDense) {
    out.own_dense(std::move(values));
    return out;
  }
  std::vector<uint32_t> index(static_cast<size_t>(head.count));
  if (head.count && !read_indices(head.codec, int(head.rice), words, head.index_words, out.size, &index)) {
    throw BadParcel("its indices are not strictly increasing and below the size");
  }
  Block<uint32_t> indices(head.count);
  std::copy(index.begin(), index.end(), indices.begin());
  out.own(std::move(indices), std::move(values), head.count);
  return out;
}

}  // namespace dct
