// Exact order statistics of magnitudes without a sort.
//
// A small sample brackets the answer; one vectorised pass counts what lies below the bracket and
// collects what lies inside it (about 1%). Only the collected entries are ever partitioned. Entries
// equal to an end of the bracket are counted, not collected, so that ties cost nothing. If the
// sample misled us, three passes of radix selection give the same answer.
#include <atomic>

#include "kernels/layers.h"

namespace dct {
namespace {

constexpr int64_t kSample = 4096;

inline uint32_t magnitude_bits(const Layer& layer, int64_t i) {
  return float_to_bits(load1(layer, i)) & 0x7FFFFFFF;
}

// The value with the given rank, and how many entries are larger.
struct Found {
  uint32_t bits = 0;
  int64_t greater = 0;
};

// Counts around the open interval (low, high), with what lies inside it.
struct Census {
  int64_t below = 0, at_low = 0, at_high = 0;
};

Census scan_scalar(const Layer& layer, int64_t begin, int64_t end, uint32_t low, uint32_t high,
                   std::vector<uint32_t>* inside) {
  Census census;
  for (int64_t i = begin; i < end; ++i) {
    uint32_t bits = magnitude_bits(layer, i);
    census.below += bits < low;
    census.at_low += bits == low;
    census.at_high += bits == high;
    if (bits > low && bits < high) inside->push_back(bits);
  }
  return census;
}

#if defined(__x86_64__)
DCT_AVX2 inline int64_t add_lanes(__m256i counts) {
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), counts);
  int64_t sum = 0;
  for (uint32_t lane : lanes) sum += lane;
  return sum;
}

template <ffi::DataType dtype>
DCT_AVX2 Census scan_avx2(const Layer& layer, int64_t begin, int64_t end, uint32_t low,
                          uint32_t high, std::vector<uint32_t>* inside) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i lows = _mm256_set1_epi32(int32_t(low)), highs = _mm256_set1_epi32(int32_t(high));
  __m256i below = _mm256_setzero_si256(), at_low = below, at_high = below;
  int64_t i = begin;
  alignas(32) uint32_t lanes[8];
  for (; i + 8 <= end; i += 8) {
    __m256i bits = _mm256_and_si256(_mm256_castps_si256(sum8<dtype>(layer, i)), magnitude);
    below = _mm256_sub_epi32(below, _mm256_cmpgt_epi32(lows, bits));
    at_low = _mm256_sub_epi32(at_low, _mm256_cmpeq_epi32(lows, bits));
    at_high = _mm256_sub_epi32(at_high, _mm256_cmpeq_epi32(highs, bits));
    __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(bits, lows), _mm256_cmpgt_epi32(highs, bits));
    unsigned mask = unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(in)));
    if (mask) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), bits);
      for (; mask; mask &= mask - 1) inside->push_back(lanes[__builtin_ctz(mask)]);
    }
  }
  Census rest = scan_scalar(layer, i, end, low, high, inside);
  return {add_lanes(below) + rest.below, add_lanes(at_low) + rest.at_low,
          add_lanes(at_high) + rest.at_high};
}
#endif

Census scan(const Layer& layer, int64_t begin, int64_t end, uint32_t low, uint32_t high,
            std::vector<uint32_t>* inside) {
#if defined(__x86_64__)
  if (has_avx2()) {
    return with_dtype(layer, [&]<ffi::DataType dtype>() {
      return scan_avx2<dtype>(layer, begin, end, low, high, inside);
    });
  }
#endif
  return scan_scalar(layer, begin, end, low, high, inside);
}

// rank is 1-indexed in ascending order.
Found select_in(uint32_t* values, int64_t count, int64_t rank) {
  uint32_t* nth = values + (rank - 1);
  std::nth_element(values, nth, values + count);
  Found found{*nth, 0};
  for (int64_t i = 0; i < count; ++i) found.greater += values[i] > *nth;
  return found;
}

Found select_small(const Layer& layer, int64_t begin, int64_t end, int64_t rank,
                   std::vector<uint32_t>* scratch) {
  scratch->resize(size_t(end - begin));
  for (int64_t i = begin; i < end; ++i) (*scratch)[size_t(i - begin)] = magnitude_bits(layer, i);
  return select_in(scratch->data(), end - begin, rank);
}

// Three levels (11, 10, 10 bits). Four histograms a task, because equal values in a row would
// otherwise wait for each other's store.
Found select_radix(ffi::ThreadPool& pool, const Layer& layer, int64_t rank) {
  uint32_t prefix = 0;
  int shift = 31;
  Found found;
  for (int width : {11, 10, 10}) {
    shift -= width;
    const int64_t buckets = int64_t(1) << width, tasks = ceil_div(layer.size, 8 * kChunk);
    std::vector<std::vector<int64_t>> partial(size_t(tasks), std::vector<int64_t>(4 * buckets));
    parallel_for(pool, tasks, [&](int64_t t) {
      int64_t* histogram = partial[size_t(t)].data();
      int64_t end = std::min(layer.size, (t + 1) * 8 * kChunk);
      for (int64_t i = t * 8 * kChunk; i < end; ++i) {
        uint32_t bits = magnitude_bits(layer, i);
        if (bits >> (shift + width) == prefix) {
          ++histogram[(i & 3) * buckets + ((bits >> shift) & (buckets - 1))];
        }
      }
    });
    std::vector<int64_t> histogram(static_cast<size_t>(buckets));
    for (auto& p : partial) {
      for (size_t j = 0; j < p.size(); ++j) histogram[j % size_t(buckets)] += p[j];
    }
    int64_t bucket = 0;
    while (rank > histogram[size_t(bucket)]) rank -= histogram[size_t(bucket++)];
    for (int64_t above = bucket + 1; above < buckets; ++above) {
      found.greater += histogram[size_t(above)];
    }
    prefix = (prefix << width) | uint32_t(bucket);
  }
  found.bits = prefix;
  return found;
}

struct Bracket {
  uint32_t low, high;
};

// Four standard deviations around the wanted quantile of a pseudo-random sample.
Bracket sample_bracket(const Layer& layer, int64_t rank) {
  std::vector<uint32_t> sample(static_cast<size_t>(kSample));
  uint64_t state = 0x9E3779B97F4A7C15ull;
  for (uint32_t& s : sample) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    s = magnitude_bits(layer, int64_t((unsigned __int128)(state) * uint64_t(layer.size) >> 64));
  }
  double p = double(rank) / double(layer.size);
  double at = p * kSample, spread = 4 * std::sqrt(kSample * p * (1 - p)) + 3;
  int64_t low = int64_t(at - spread), high = int64_t(at + spread);
  Bracket bracket{0, 0x7FFFFFFF};
  auto pick = [&](int64_t i) {
    std::nth_element(sample.begin(), sample.begin() + i, sample.end());
    return sample[size_t(i)];
  };
  if (low > 0) bracket.low = pick(low);
  if (high < kSample) bracket.high = pick(high);
  return bracket;
}

Found select_large(ffi::ThreadPool& pool, const Layer& layer, int64_t rank) {
  const Bracket bracket = sample_bracket(layer, rank);
  const int64_t tasks = ceil_div(layer.size, kChunk);
  std::vector<Census> partial(static_cast<size_t>(tasks));
  std::vector<std::vector<uint32_t>> found(static_cast<size_t>(tasks));
  parallel_for(pool, tasks, [&](int64_t t) {
    int64_t begin = t * kChunk;
    partial[size_t(t)] = scan(layer, begin, std::min(layer.size, begin + kChunk), bracket.low,
                              bracket.high, &found[size_t(t)]);
  });
  Census all;
  std::vector<uint32_t> inside;
  for (size_t t = 0; t < partial.size(); ++t) {
    inside.insert(inside.end(), found[t].begin(), found[t].end());
    all.below += partial[t].below;
    all.at_low += partial[t].at_low;
    all.at_high += partial[t].at_high;
  }
  const int64_t count = int64_t(inside.size());
  int64_t r = rank - all.below, above = layer.size - all.below - all.at_low;
  if (r >= 1 && r <= all.at_low) return {bracket.low, above};
  r -= all.at_low;
  if (r >= 1 && r <= count && count <= layer.size / 8) {
    Found answer = select_in(inside.data(), count, r);
    answer.greater += above - count;
    return answer;
  }
  r -= count;
  if (r >= 1 && r <= all.at_high && bracket.high != bracket.low) {
    return {bracket.high, above - count - all.at_high};
  }
  return select_radix(pool, layer, rank);
}

// control = (refresh); see kernels/dispatch.py: threshold.
ffi::Error Threshold(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control,
                     ffi::Buffer<ffi::F32> old_tau, ffi::Buffer<ffi::U32> rank,
                     ffi::RemainingArgs args, ffi::ResultBuffer<ffi::F32> tau,
                     ffi::ResultBuffer<ffi::U32> ties, int64_t segment, bool feedback) {
  FlushDenormals mode;
  if (!control.typed_data()[0]) {
    std::memcpy(tau->typed_data(), old_tau.typed_data(), tau->size_bytes());
    std::fill_n(ties->typed_data(), ties->element_count(), UINT32_MAX);
    return ffi::Error::Success();
  }
  std::vector<Layer> layers;
  if (auto error = read_layers(args, feedback, segment, &layers); error.failure()) return error;
  auto write = [&](int64_t s, int64_t size, Found found) {
    int64_t kept = size - int64_t(rank.typed_data()[s]) + 1;
    tau->typed_data()[s] = bits_to_float(found.bits);
    ties->typed_data()[s] = uint32_t(kept - found.greater);
  };
  if (segment) {
    std::vector<Chunk> chunks = make_chunks(layers, segment);
    parallel_for(pool, int64_t(chunks.size()), [&](int64_t c) {
      const Chunk& chunk = chunks[size_t(c)];
      std::vector<uint32_t> scratch;
      for (int64_t begin = chunk.begin; begin < chunk.end; begin += segment) {
        int64_t end = std::min(chunk.end, begin + segment);
        int64_t s = chunk.layer->segment + begin / segment;
        int64_t r = std::clamp<int64_t>(rank.typed_data()[s], 1, end - begin);
        write(s, end - begin, select_small(*chunk.layer, begin, end, r, &scratch));
      }
    });
    return ffi::Error::Success();
  }
  std::vector<uint32_t> scratch;
  for (const Layer& layer : layers) {
    if (!layer.size) continue;
    int64_t r = std::clamp<int64_t>(rank.typed_data()[layer.segment], 1, layer.size);
    write(layer.segment, layer.size,
          layer.size <= 4 * kSample ? select_small(layer, 0, layer.size, r, &scratch)
                                    : select_large(pool, layer, r));
  }
  return ffi::Error::Success();
}

// One word: 1 when every entry of every layer is finite.
ffi::Error AllFinite(ffi::ThreadPool pool, ffi::RemainingArgs args,
                     ffi::ResultBuffer<ffi::U32> finite) {
  FlushDenormals mode;
  std::vector<Layer> layers;
  if (ffi::Error error = read_layers(args, false, 0, &layers); error.failure()) return error;
  std::vector<Chunk> chunks = make_chunks(layers, 0);
  std::atomic<uint32_t> all{1};
  parallel_for(pool, int64_t(chunks.size()), [&](int64_t c) {
    const Chunk& chunk = chunks[size_t(c)];
    // Nothing lies above infinity but NaN, so one census answers.
    std::vector<uint32_t> none;
    Census census = scan(*chunk.layer, chunk.begin, chunk.end, 0x7F800000, 0x7F800000, &none);
    if (census.below != chunk.end - chunk.begin) all.store(0);
  });
  finite->typed_data()[0] = all.load();
  return ffi::Error::Success();
}

}  // namespace

DCT_HANDLER(threshold, Threshold, "segment", "feedback");
DCT_HANDLER(all_finite, AllFinite);

}  // namespace dct
