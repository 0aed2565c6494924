// One pass over memory: error feedback, threshold, pack, new residual.
#include "common/values.h"
#include "kernels/layers.h"

namespace dct {
namespace {

struct Entry {
  uint32_t index;
  float value;
};

// Where the selected entries of one chunk go until their final places are known. It starts small: a large
// allocation would come fresh from the system every time, and its page faults cost more than the pass.
struct Selected {
  std::vector<Entry> entries;

  inline void add(const Layer& layer, int64_t i, float value_i, Values codec) {
    entries.push_back({uint32_t(layer.offset + i), value_i});
    if (layer.residual_out) {
      // Rounding is undone by the residual: what the codec takes away stays here.
      layer.residual_out[i] = codec == Values::kFloat32 ? 0.0f : value_i - round_trip(value_i, codec);
    }
  }
};

// Denormals are flushed, so a magnitude of at least FLT_MIN is the same as not being zero.
inline float effective(float tau) { return std::max(tau, FLT_MIN); }

void select_scalar(const Layer& layer, int64_t begin, int64_t end, float tau, Values codec,
                   Selected* out) {
  for (int64_t i = begin; i < end; ++i) {
    float x = load1(layer, i);
    if (std::fabs(x) >= tau) {
      out->add(layer, i, x, codec);
    } else if (layer.residual_out) {
      layer.residual_out[i] = x;
    }
  }
}

#if defined(__x86_64__)
template <ffi::DataType dtype>
DCT_AVX2 void select_avx2(const Layer& layer, int64_t begin, int64_t end, float tau, Values codec,
                          Selected* out) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  const __m256 limit = _mm256_set1_ps(tau);
  alignas(32) float lanes[8];
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    __m256 x = sum8<dtype>(layer, i);
    __m256 keep = _mm256_cmp_ps(_mm256_and_ps(x, magnitude), limit, _CMP_GE_OQ);
    if (layer.residual_out) _mm256_storeu_ps(layer.residual_out + i, x);
    unsigned mask = unsigned(_mm256_movemask_ps(keep));
    if (mask) {
      _mm256_store_ps(lanes, x);
      for (; mask; mask &= mask - 1) {
        int lane = __builtin_ctz(mask);
        out->add(layer, i + lane, lanes[lane], codec);
      }
    }
  }
  select_scalar(layer, i, end, tau, codec, out);
}
#endif

void select(const Layer& layer, int64_t begin, int64_t end, float tau, Values codec,
            Selected* out) {
#if defined(__x86_64__)
  if (has_avx2()) {
    with_dtype(layer, [&]<ffi::DataType dtype>() {
      select_avx2<dtype>(layer, begin, end, tau, codec, out);
    });
    return;
  }
#endif
  select_scalar(layer, begin, end, tau, codec, out);
}

void put_back(const Layer& layer, const Entry& entry) {
  if (layer.residual_out) layer.residual_out[entry.index - layer.offset] = entry.value;
}

// control = (limit, live); see kernels/dispatch.py: pack.
ffi::Error Pack(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::F32> tau,
                ffi::Buffer<ffi::U32> ties, ffi::RemainingArgs args,
                ffi::ResultBuffer<ffi::U32> index, ffi::ResultBuffer<ffi::F32> value,
                ffi::ResultBuffer<ffi::U32> counts, ffi::RemainingRets rets, int64_t segment,
                bool feedback, int64_t value_codec) {
  FlushDenormals mode;
  std::vector<Layer> layers;
  if (auto error = read_layers(args, feedback, segment, &layers); error.failure()) return error;
  if (auto error = read_residuals_out(rets, feedback, &layers); error.failure()) return error;
  const bool live = control.typed_data()[1] != 0;
  // What was sent, and what each layer wanted to send.
  uint32_t* sent_and_wanted = counts->typed_data();
  std::fill_n(sent_and_wanted, counts->element_count(), 0u);
  if (!live) {
    keep_residuals(layers);
    return ffi::Error::Success();
  }

  const Values codec = Values(value_codec);
  const float* taus = tau.typed_data();
  const uint32_t* quota = ties.typed_data();
  std::vector<Chunk> chunks = make_chunks(layers, segment);
  std::vector<Selected> selected(chunks.size());

  parallel_for(pool, int64_t(chunks.size()), [&](int64_t c) {
    const Chunk& chunk = chunks[size_t(c)];
    const Layer& layer = *chunk.layer;
    Selected& out = selected[size_t(c)];
    out.entries.reserve(size_t(chunk.end - chunk.begin) / 32 + 16);
    int64_t step = segment ? segment : chunk.end - chunk.begin;
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += step) {
      float tau_here = effective(taus[layer.segment + (segment ? begin / segment : 0)]);
      select(layer, begin, std::min(chunk.end, begin + step), tau_here, codec, &out);
    }
  });

  // In order now: of entries equal to their threshold only the segment's quota goes, and of what is left no more than
  // the limit, every layer cut alike. What does not go returns to the residual whole.
  const int64_t limit = std::min<int64_t>(control.typed_data()[0], index->element_count());
  std::vector<uint32_t> left(quota, quota + ties.element_count());
  int64_t all = 0, sent = 0, i = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const Layer& layer = *chunks[c].layer;
    std::vector<Entry>& entries = selected[c].entries;
    size_t stay = 0;
    for (const Entry& entry : entries) {
      int64_t s = layer.segment + (segment ? (entry.index - layer.offset) / segment : 0);
      if (quota[s] != UINT32_MAX && std::fabs(entry.value) == taus[s]) {
        if (!left[size_t(s)]) {
          put_back(layer, entry);
          continue;
        }
        --left[size_t(s)];
      }
      entries[stay++] = entry;
    }
    entries.resize(stay);
    sent_and_wanted[1 + (&layer - layers.data())] += uint32_t(stay);
    all += int64_t(stay);
  }
  const Cut cut(limit, all);
  for (size_t c = 0; c < chunks.size(); ++c) {
    for (const Entry& entry : selected[c].entries) {
      if (all <= limit || cut.keeps(i++)) {
        index->typed_data()[sent] = entry.index;
        value->typed_data()[sent++] = entry.value;
      } else {
        put_back(*chunks[c].layer, entry);
      }
    }
  }
  sent_and_wanted[0] = uint32_t(sent);
  return ffi::Error::Success();
}

}  // namespace

DCT_HANDLER(pack, Pack, "segment", "feedback", "value_codec");

}  // namespace dct
