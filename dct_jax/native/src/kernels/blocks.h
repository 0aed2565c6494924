// What messages of blocks (docs/wire_format.md) have in common: loading layers, sealing, the dense values.
#pragma once

#include "kernels/layers.h"
#include "kernels/stream.h"

namespace dct {

#if defined(__x86_64__)
// The same as load_sums for a layer of the given type.
template <ffi::DataType dtype>
DCT_AVX2 inline void load_sums_avx2(const Layer& layer, int64_t begin, int64_t end, float* x) {
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) _mm256_storeu_ps(x + (i - begin), sum8<dtype>(layer, i));
  for (; i < end; ++i) x[i - begin] = load1(layer, i);
}
#endif

// Writes gradient + residual of entries [begin, end) to x.
inline void load_sums(const Layer& layer, int64_t begin, int64_t end, float* x) {
#if defined(__x86_64__)
  if (has_avx2()) {
    with_dtype(layer, [&]<ffi::DataType dtype>() { load_sums_avx2<dtype>(layer, begin, end, x); });
    return;
  }
#endif
  for (int64_t i = begin; i < end; ++i) x[i - begin] = load1(layer, i);
}

// Entries of all layers together.
inline int64_t entries_of(const std::vector<Layer>& layers) {
  int64_t total = 0;
  for (const Layer& layer : layers) total += layer.size;
  return total;
}

// Reads where sums go out of the results of a decoder. The last `dense_layers` of them travelled whole and go to
// `dense`, the others to `layers`.
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

// Writes the header of a message of `length` words whose body is there. `wanted` is the length it would have had with
// room for all; a worker that is not `live` had a gradient that was not finite.
inline void seal(uint32_t* out, uint32_t codec, int64_t length, int64_t wanted, bool live) {
  out[word::kKind] = kMagic | codec;
  out[word::kLength] = uint32_t(length);
  out[word::kWanted] = uint32_t(wanted);
  out[word::kCount] = 0;
  out[word::kFlags] = live ? 0 : kNonfinite;
  out[word::kChecksum] = checksum(out, length);
}

// Writes the sums of the layers that travelled whole, added in the order of `bodies`: whole messages that were checked,
// nullptr where one says nothing.
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
