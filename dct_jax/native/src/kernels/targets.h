// Where decoded messages go: the layers of a result, and adding streams up into them.
#pragma once

#include "kernels/layers.h"
#include "kernels/stream.h"

namespace dct {

// One layer of the result. Layers that travel dense have no units.
struct Target {
  float* data;
  int64_t size;
  int64_t first_unit;
  int64_t units;
};

// All layers of a result: those that entries are selected from, and those that travel whole.
struct Targets {
  std::vector<Target> sparse, dense;
  int64_t universe = 0;
  int64_t dense_values = 0;
};

// Reads the layers out of the results of a handler. The last `dense_layers` of them travel whole; an index of the
// others stands for `unit` entries.
inline ffi::Error read_targets(ffi::RemainingRets rets, int64_t dense_layers, int64_t unit,
                               Targets* targets) {
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::Buffer<ffi::F32>>(i);
    if (!buffer) return buffer.error();
    Target target{(*buffer)->typed_data(), int64_t((*buffer)->element_count()), 0, 0};
    if (int64_t(i) < int64_t(rets.size()) - dense_layers) {
      target.first_unit = targets->universe;
      target.units = ceil_div(target.size, unit);
      targets->universe += target.units;
      targets->sparse.push_back(target);
    } else {
      targets->dense_values += target.size;
      targets->dense.push_back(target);
    }
  }
  return ffi::Error::Success();
}

// Adds the entries of a stream whose units lie in [begin, end). The stream must have been checked for this universe.
inline void scatter_add(const Stream& stream, const Targets& targets, int64_t begin, int64_t end,
                        int64_t unit, Values codec) {
  auto from = std::lower_bound(stream.index.begin(), stream.index.end(), uint32_t(begin));
  size_t t = 0;
  for (auto it = from; it != stream.index.end() && *it < end; ++it) {
    while (*it >= targets.sparse[t].first_unit + targets.sparse[t].units) ++t;
    const Target& target = targets.sparse[t];
    int64_t first = (*it - target.first_unit) * unit;
    int64_t last = std::min(target.size, first + unit);
    int64_t v = (it - stream.index.begin()) * unit;
    for (int64_t i = first; i < last; ++i, ++v) {
      target.data[i] += read_value(stream.values, v, codec);
    }
  }
}

// Adds the layers that travelled whole, if the stream says anything.
inline void add_dense(const Stream& stream, const Targets& targets, Values codec) {
  if (!stream.dense) return;
  int64_t v = 0;
  for (const Target& target : targets.dense) {
    for (int64_t i = 0; i < target.size; ++i) {
      target.data[i] += read_value(stream.dense, v++, codec);
    }
  }
}

// Clears the units [begin, end).
inline void zero_units(const Targets& targets, int64_t begin, int64_t end, int64_t unit) {
  for (const Target& target : targets.sparse) {
    int64_t first = std::max(begin, target.first_unit) - target.first_unit;
    int64_t last = std::min(end, target.first_unit + target.units) - target.first_unit;
    if (first >= last) continue;
    float* from = target.data + first * unit;
    std::fill(from, target.data + std::min(target.size, last * unit), 0.0f);
  }
}

// Writes the sum of the intact streams, added in their order. Threads share the destination, so that no two ever
// write the same entry.
inline void sum_streams(ffi::ThreadPool& pool, const std::vector<Stream>& streams,
                        const Targets& targets, int64_t unit, Values codec) {
  const int64_t step = std::max<int64_t>(1, 4 * kChunk / unit);
  parallel_for(pool, ceil_div(targets.universe, step), [&](int64_t t) {
    int64_t begin = t * step, end = std::min(targets.universe, begin + step);
    zero_units(targets, begin, end, unit);
    for (const Stream& stream : streams) {
      if (stream.ok) scatter_add(stream, targets, begin, end, unit, codec);
    }
  });
  for (const Target& target : targets.dense) std::fill_n(target.data, target.size, 0.0f);
  for (const Stream& stream : streams) {
    if (stream.ok) add_dense(stream, targets, codec);
  }
}

}  // namespace dct
