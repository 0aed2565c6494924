// Count-sketches: entries of blocks, added to buckets that a keyed hash chooses, and read again.
#include <algorithm>
#include <cstring>
#include <vector>

#include "common/handler.h"
#include "common/integers.h"
#include "common/parallel.h"

namespace dct {
namespace {

struct Place {
  uint32_t bucket, sign;  // the sign as a float has it, in the highest bit
};

inline Place place(uint32_t index, uint32_t key, uint32_t buckets) {
  const uint32_t h = mix_all(index ^ key);
  return {uint32_t(uint64_t(h) * buckets >> 32), h << 31};
}

inline float signed_by(float x, uint32_t sign) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits ^= sign;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Whether arrays hold `count` blocks: the k-th one is row k of `rows`, or, by id, the row of its number.
bool hold(const ffi::Buffer<ffi::U32>& ids, int64_t count, int64_t rows, bool by_id) {
  if (count > int64_t(ids.element_count())) return false;
  const uint32_t* first = ids.typed_data();
  return by_id ? std::all_of(first, first + count, [&](uint32_t id) { return id < rows; }) : count <= rows;
}

// The places of a stretch of entries: found in a loop of their own, which the compiler makes vector code of.
constexpr int64_t kStretch = 256;
struct Places {
  uint32_t bucket[kStretch], sign[kStretch];

  void find(uint32_t first, int64_t n, uint32_t key, uint32_t buckets) {
    for (int64_t i = 0; i < n; ++i) {
      const Place p = place(first + uint32_t(i), key, buckets);
      bucket[i] = p.bucket;
      sign[i] = p.sign;
    }
  }
};

// Calls body(row of values, first entry, n, places) for stretches of the blocks' entries, in order.
template <typename Body>
void for_stretches(const uint32_t* ids, int64_t count, int64_t unit, bool by_id, uint32_t key, uint32_t buckets,
                   const Body& body) {
  Places places;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t row = by_id ? ids[k] : k;
    for (int64_t at = 0; at < unit; at += kStretch) {
      const int64_t n = std::min(kStretch, unit - at);
      places.find(ids[k] * uint32_t(unit) + uint32_t(at), n, key, buckets);
      body(row * unit + at, n, places);
    }
  }
}

// control = (count); see kernels/dispatch.py: sketch_insert.
ffi::Error SketchInsert(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> ids,
                        ffi::Buffer<ffi::F32> values, ffi::Buffer<ffi::U32> keys, ffi::ResultBuffer<ffi::F32> table,
                        bool by_id) {
  FlushDenormals mode;
  const int64_t count = control.typed_data()[0], unit = values.dimensions()[1], rows = values.dimensions()[0];
  const int64_t buckets = table->dimensions()[1];
  if (!hold(ids, count, rows, by_id)) return ffi::Error::InvalidArgument("more blocks than the arrays hold");
  parallel_for(pool, int64_t(keys.element_count()), [&](int64_t j) {
    float* sums = table->typed_data() + j * buckets;
    std::fill_n(sums, buckets, 0.0f);
    for_stretches(ids.typed_data(), count, unit, by_id, keys.typed_data()[j], uint32_t(buckets),
                  [&](int64_t at, int64_t n, const Places& p) {
                    const float* x = values.typed_data() + at;
                    for (int64_t i = 0; i < n; ++i) sums[p.bucket[i]] += signed_by(x[i], p.sign[i]);
                  });
  });
  return ffi::Error::Success();
}

// What is not a number comes last, as wherever numbers are sorted.
inline bool before(float a, float b) { return a < b || (b != b && a == a); }

// Of r estimates, which are sorted on the way; of an even number, the mean of the middle two.
inline float median(float* x, int64_t r) {
  for (int64_t i = 1; i < r; ++i) {
    for (int64_t j = i; j > 0 && before(x[j], x[j - 1]); --j) std::swap(x[j], x[j - 1]);
  }
  return r % 2 ? x[r / 2] : (x[r / 2 - 1] + x[r / 2]) * 0.5f;
}

// control = (count); see kernels/dispatch.py: sketch_query.
ffi::Error SketchQuery(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> ids,
                       ffi::Buffer<ffi::F32> table, ffi::Buffer<ffi::U32> keys, ffi::ResultBuffer<ffi::F32> values,
                       bool by_id) {
  FlushDenormals mode;
  const int64_t count = control.typed_data()[0], unit = values->dimensions()[1], rows = values->dimensions()[0];
  const int64_t buckets = table.dimensions()[1], r = table.dimensions()[0];
  if (!hold(ids, count, rows, by_id)) return ffi::Error::InvalidArgument("more blocks than the arrays hold");
  float* out = values->typed_data();
  std::fill_n(out + (by_id ? 0 : count * unit), (by_id ? rows : rows - count) * unit, 0.0f);
  constexpr int64_t kTogether = 64;  // blocks of one task
  parallel_for(pool, ceil_div(count, kTogether), [&](int64_t task) {
    const int64_t first = task * kTogether, n = std::min(kTogether, count - first);
    const uint32_t* mine = ids.typed_data() + first;
    std::vector<float> estimates(size_t(r * n * unit));
    for (int64_t j = 0; j < r; ++j) {
      const float* sums = table.typed_data() + j * buckets;
      for_stretches(mine, n, unit, false, keys.typed_data()[j], uint32_t(buckets),
                    [&](int64_t at, int64_t m, const Places& p) {
                      float* to = estimates.data() + at * r + j;
                      for (int64_t i = 0; i < m; ++i) to[i * r] = signed_by(sums[p.bucket[i]], p.sign[i]);
                    });
    }
    for (int64_t k = 0; k < n; ++k) {
      float* to = out + (by_id ? int64_t(mine[k]) : first + k) * unit;
      for (int64_t i = 0; i < unit; ++i) to[i] = median(estimates.data() + (k * unit + i) * r, r);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

DCT_HANDLER(sketch_insert, SketchInsert, "by_id");
DCT_HANDLER(sketch_query, SketchQuery, "by_id");

}  // namespace dct
