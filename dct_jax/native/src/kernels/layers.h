// A gradient as it comes from JAX: several layers, each float32, bfloat16 or float16, with or
// without a float32 residual of the same size. Kernels see it as chunks of float32 sums.
#pragma once

#include <algorithm>
#include <cfloat>
#include <vector>

#include "common/cpu.h"
#include "common/floats.h"
#include "common/handler.h"
#include "common/integers.h"
#include "common/parallel.h"

namespace dct {

constexpr int64_t kChunk = 1 << 16;  // elements a task handles: two chunks stay in a 512 KiB cache

struct Layer {
  const void* gradient;
  ffi::DataType dtype;
  const float* residual;  // nullptr: no error feedback
  float* residual_out;    // may be the same memory as residual
  int64_t size;
  int64_t offset;         // of its first unit among all layers
  int64_t segment;        // index of its first segment (threshold) among all layers
};

// gradient + residual. Two finite numbers may add up to infinity, which no residual could get rid of again: the
// largest finite number is as good.
inline float finite_sum(float g, float e) { return std::min(std::max(g + e, -FLT_MAX), FLT_MAX); }

// gradient + residual of entry i.
inline float load1(const Layer& layer, int64_t i) {
  float g;
  if (layer.dtype == ffi::DataType::F32) {
    g = static_cast<const float*>(layer.gradient)[i];
  } else if (layer.dtype == ffi::DataType::BF16) {
    g = bfloat_to_float(static_cast<const uint16_t*>(layer.gradient)[i]);
  } else {
    g = half_to_float(static_cast<const uint16_t*>(layer.gradient)[i]);
  }
  return layer.residual ? finite_sum(g, layer.residual[i]) : g + 0.0f;
}

#if defined(__x86_64__)
// Entries [i, i + 8) of an array of the given type.
template <ffi::DataType dtype>
DCT_AVX2 inline __m256 load8(const void* gradient, int64_t i) {
  if constexpr (dtype == ffi::DataType::F32) {
    return _mm256_loadu_ps(static_cast<const float*>(gradient) + i);
  } else {
    __m128i half = _mm_loadu_si128(
        reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(gradient) + i));
    if constexpr (dtype == ffi::DataType::F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
}

// gradient + residual of entries [i, i + 8). The layer must have the given type.
template <ffi::DataType dtype>
DCT_AVX2 inline __m256 sum8(const Layer& layer, int64_t i) {
  __m256 g = load8<dtype>(layer.gradient, i);
  if (!layer.residual) return _mm256_add_ps(g, _mm256_setzero_ps());
  const __m256 most = _mm256_set1_ps(FLT_MAX), least = _mm256_set1_ps(-FLT_MAX);
  __m256 sum = _mm256_add_ps(g, _mm256_loadu_ps(layer.residual + i));
  return _mm256_min_ps(_mm256_max_ps(sum, least), most);
}
#endif

// Calls f.template operator()<dtype>() for the layer's type.
template <typename F>
auto with_dtype(const Layer& layer, F&& f) {
  if (layer.dtype == ffi::DataType::F32) return f.template operator()<ffi::DataType::F32>();
  if (layer.dtype == ffi::DataType::BF16) return f.template operator()<ffi::DataType::BF16>();
  return f.template operator()<ffi::DataType::F16>();
}

// Entries [begin, end) of a layer.
struct Chunk {
  const Layer* layer;
  int64_t begin, end;
};

// Cuts all layers into chunks whose ends fall on segment borders (segment 0: the whole layer). Chunks point into
// `layers`, which must stay where it is.
inline std::vector<Chunk> make_chunks(const std::vector<Layer>& layers, int64_t segment) {
  int64_t step = segment ? std::max<int64_t>(1, kChunk / segment) * segment : kChunk;
  std::vector<Chunk> chunks;
  for (const Layer& layer : layers) {
    for (int64_t begin = 0; begin < layer.size; begin += step) {
      chunks.push_back({&layer, begin, std::min(layer.size, begin + step)});
    }
  }
  return chunks;
}

// Reads layers out of the arguments of a handler: n gradients, then n residuals when `feedback`. Fails for types that
// kernels do not know and for residuals of another size.
inline ffi::Error read_layers(ffi::RemainingArgs args, bool feedback, int64_t segment,
                              std::vector<Layer>* layers) {
  size_t n = feedback ? args.size() / 2 : args.size();
  int64_t offset = 0, segments = 0;
  for (size_t i = 0; i < n; ++i) {
    auto gradient = args.get<ffi::AnyBuffer>(i);
    if (!gradient) return gradient.error();
    Layer layer{gradient->untyped_data(), gradient->element_type(), nullptr, nullptr,
                int64_t(gradient->element_count()), offset, segments};
    if (layer.dtype != ffi::DataType::F32 && layer.dtype != ffi::DataType::BF16 &&
        layer.dtype != ffi::DataType::F16) {
      return ffi::Error::InvalidArgument("gradients must be float32, bfloat16 or float16");
    }
    if (feedback) {
      auto residual = args.get<ffi::Buffer<ffi::F32>>(n + i);
      if (!residual) return residual.error();
      if (int64_t(residual->element_count()) != layer.size) {
        return ffi::Error::InvalidArgument("a residual differs in size from its gradient");
      }
      layer.residual = residual->typed_data();
    }
    offset += layer.size;
    segments += segment ? ceil_div(layer.size, segment) : 1;
    layers->push_back(layer);
  }
  return ffi::Error::Success();
}

// Reads where the new residuals go out of the results of a handler, in the order of the layers.
inline ffi::Error read_residuals_out(ffi::RemainingRets rets, bool feedback, std::vector<Layer>* layers) {
  for (size_t i = 0; feedback && i < layers->size(); ++i) {
    auto residual = rets.get<ffi::Buffer<ffi::F32>>(i);
    if (!residual) return residual.error();
    (*layers)[i].residual_out = (*residual)->typed_data();
  }
  return ffi::Error::Success();
}

// Copies residuals to where the new ones go, for a worker that has nothing to say. Does nothing in place, nor without
// feedback.
inline void keep_residuals(const std::vector<Layer>& layers) {
  for (const Layer& layer : layers) {
    if (!layer.residual_out || layer.residual_out == layer.residual) continue;
    std::memcpy(layer.residual_out, layer.residual, size_t(layer.size) * sizeof(float));
  }
}

}  // namespace dct
