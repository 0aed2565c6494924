// A gradient as it comes from JAX: several layers, each float32, bfloat16 or float16, with or
// without a float32 residual of the same size. Kernels see it as chunks of float32 sums.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/parallel.h"
#include "xla/ffi/api/ffi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define DCT_AVX2 __attribute__((target("avx2,f16c,bmi,popcnt")))
#endif

namespace dct {

namespace ffi = xla::ffi;

constexpr int64_t kChunk = 1 << 16;  // elements a task handles: two chunks stay in a 512 KiB cache

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// DCT_JAX_AVX2=0 takes the plain loops of processors without it, so that they can be tested on one with it.
inline bool has_avx2() {
#if defined(__x86_64__)
  static const bool yes = [] {
    const char* wish = std::getenv("DCT_JAX_AVX2");
    bool wanted = !wish || std::strcmp(wish, "0") != 0;
    return wanted && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  }();
  return yes;
#else
  return false;
#endif
}

// IEEE half to float, for processors without the instruction.
inline float half_to_float(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16;
  uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7F800000 | (mantissa << 13));
  if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float value = float(mantissa) * 0x1p-24f;
  return sign ? -value : value;
}

// Float to IEEE half, to nearest even. Finite input within half's range only.
inline uint16_t float_to_half(float x) {
  uint32_t bits = float_to_bits(x);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude < 0x38800000) {  // below half's smallest normal number: a multiple of 2^-24
    float scaled = bits_to_float(magnitude) * 0x1p24f;
    return uint16_t(sign | uint16_t(std::nearbyint(scaled)));
  }
  uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return uint16_t(sign | uint16_t((rounded - 0x38000000) >> 13));
}

inline uint16_t float_to_bfloat(float x) {
  uint32_t bits = float_to_bits(x);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float bfloat_to_float(uint16_t x) { return bits_to_float(uint32_t(x) << 16); }

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

// The same, eight at a time.
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

struct Chunk {
  const Layer* layer;
  int64_t begin, end;
};

// Cuts all layers into chunks whose ends fall on segment borders (segment 0: the whole layer).
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

// Reads layers out of the arguments of a handler: n gradients, then n residuals when `feedback`.
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

}  // namespace dct
