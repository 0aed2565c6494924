// How the messages of a reduction read, and a message as a vector.
#pragma once

#include <vector>

#include "kernels/stream.h"
#include "transport/union_reduce.h"

namespace dct {

// What a reduction of messages is told, and how messages read.
struct MessageForm {
  Settings settings;
  int64_t unit;
  Values values;
  std::vector<int64_t> sparse_sizes, dense_sizes;  // of the layers, in the order of the results

  // Units of all layers that entries are selected from.
  int64_t universe() const {
    int64_t n = 0;
    for (int64_t s : sparse_sizes) n += ceil_div(s, unit);
    return n;
  }
  // Entries of all layers that travel whole.
  int64_t dense_values() const {
    int64_t n = 0;
    for (int64_t s : dense_sizes) n += s;
    return n;
  }
  // Entries of all layers.
  int64_t total() const {
    int64_t n = dense_values();
    for (int64_t s : sparse_sizes) n += s;
    return n;
  }

  // The units of the vector that `vector_of` makes of a message; layers that travel whole are one.
  Units units() const {
    Units out;
    for (int64_t s : sparse_sizes) out.append(s, unit);
    out.append(dense_values(), dense_values());
    return out;
  }

  // Words that no message exceeds: no codec takes more than a word an index, but for what it rounds up.
  int64_t most_words() const {
    return kHeader + value_words(dense_values(), values) + universe() + 2 + value_words(universe() * unit, values);
  }

  // Reads a message in a buffer of `length` words; see read_message.
  Stream read(const uint32_t* words, int64_t length) const {
    return read_message(words, length, universe(), unit, value_words(dense_values(), values), values);
  }

  // Entries that a message speaks of.
  uint64_t entries_of(const Stream& stream) const {
    return stream.index.size() * uint64_t(unit) + (stream.dense ? uint64_t(dense_values()) : 0);
  }
};

// The entries of a checked message as a vector over all layers laid end to end, those that travel whole last.
inline Vec<float> vector_of(const Stream& stream, const MessageForm& form) {
  Vec<float> out;
  out.size = form.total();
  const int64_t whole = stream.dense ? form.dense_values() : 0;
  const int64_t most = int64_t(stream.index.size()) * form.unit + whole;
  Block<uint32_t> index(most);
  Block<float> value(most);
  int64_t n = 0, v = 0, first_unit = 0, first = 0;
  size_t layer = 0;
  for (uint32_t u : stream.index) {
    while (u >= first_unit + ceil_div(form.sparse_sizes[layer], form.unit)) {
      first_unit += ceil_div(form.sparse_sizes[layer], form.unit);
      first += form.sparse_sizes[layer++];
    }
    const int64_t begin = (u - first_unit) * form.unit;
    const int64_t end = std::min(form.sparse_sizes[layer], begin + form.unit);
    for (int64_t i = begin; i < end; ++i) {
      index[n] = uint32_t(first + i);
      value[n++] = read_value(stream.values, v + i - begin, form.values);
    }
    v += form.unit;
  }
  const int64_t dense_begin = form.total() - form.dense_values();
  for (int64_t i = 0; i < whole; ++i) {
    index[n] = uint32_t(dense_begin + i);
    value[n++] = read_value(stream.dense, i, form.values);
  }
  out.own(std::move(index), std::move(value), n);
  return out;
}

}  // namespace dct
