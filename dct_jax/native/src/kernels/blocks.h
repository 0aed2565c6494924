// What messages of blocks (docs/wire_format.md) have in common: loading layers, sealing, the dense values.
#pragma once

#include "common/layers.h"
#include "kernels/stream.h"

namespace dct {

#if defined(__x86_64__)
template <ffi::DataType dtype>
DCT_AVX2 inline void load_sums_avx2(const Layer& layer, int64_t begin, int64_t end, float* x) {
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) _mm256_storeu_ps(x + (i - begin), sum8<dtype>(layer, i));
  for (; i < end; ++i) x[i - begin] = load1(layer, i);
}
#endif

// gradient + residual, of entries [begin, end).
inline void load_sums(const Layer& layer, int64_t begin, int64_t end, float* x) {
#if defined(__x86_64__)
  if (has_avx2()) {
    with_dtype(layer, [&]<ffi::DataType dtype>() { load_sums_avx2<dtype>(layer, begin, end, x); });
    return;
  }
#endif
  for (int64_t i = begin; i < end; ++i) x[i - begin] = load1(layer, i);
}

inline int64_t entries_of(const std::vector<Layer>& layers) {
  int64_t total = 0;
  for (const Layer& layer : layers) total += layer.size;
  return total;
}

// The results of an encoder, one for each residual.
inline ffi::Error read_residuals_out(ffi::RemainingRets rets, bool feedback, std::vector<Layer>* layers) {
  for (size_t i = 0; feedback && i < layers->size(); ++i) {
    auto residual = rets.get<ffi::Buffer<ffi::F32>>(i);
    if (!residual) return residual.error();
    (*layers)[i].residual_out = (*residual)->typed_data();
  }
  return ffi::Error::Success();
}

// The results of a decoder: sums of layers, the last `dense_layers` of which travelled whole.
inline ffi::Error read_sums(ffi::RemainingRets rets, int64_t dense_layers, std::vector<Layer>* layers,
                            std::vector<Layer>* dense) {
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::Buffer<ffi::F32>>(i);
    if (!buffer) return buffer.error();
    const bool whole = int64_t(i) >= int64_t(rets.size()) - dense_layers;
    (whole ? dense : layers)->push_back({nullptr, ffi::DataType::F32, nullptr, (*buffer)->typed_data(),
                                         int64_t((*buffer)->element_count()), 0, 0});
  }
  return ffi::Error::Success();
}

inline void keep_residuals(const std::vector<Layer>& layers) {
  for (const Layer& layer : layers) {
    if (layer.residual_out == layer.residual) continue;
    std::memcpy(layer.residual_out, layer.residual, size_t(layer.size) * sizeof(float));
  }
}

// Writes the header of a message whose body is there.
inline void seal(uint32_t* out, uint32_t codec, int64_t length, int64_t wanted, bool live) {
  out[0] = kMagic | codec;
  out[1] = uint32_t(length);
  out[2] = uint32_t(wanted);
  out[3] = 0;
  out[4] = live ? 0 : 1;
  out[5] = checksum(out, length);
}

// Sums of the layers that travelled whole; a body is nullptr where a message says nothing.
inline void sum_whole_layers(const std::vector<const uint32_t*>& bodies, const std::vector<Layer>& dense) {
  int64_t at = kHeader;
  for (const Layer& layer : dense) {
    std::fill_n(layer.residual_out, layer.size, 0.0f);
    for (const uint32_t* body : bodies) {
      for (int64_t i = 0; body && i < layer.size; ++i) layer.residual_out[i] += bits_to_float(body[at + i]);
    }
    at += layer.size;
  }
}

}  // namespace dct
