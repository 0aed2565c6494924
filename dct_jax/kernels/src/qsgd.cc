// Messages of QSGD blocks: encode one, add up those of several workers.
#include "qsgd.h"

#include "handlers.h"
#include "stream.h"

namespace dct {
namespace {

// Value codecs of docs/wire_format.md that a compressor owns.
uint32_t qsgd_codec(int bits) { return bits == 2 ? 16 : bits == 4 ? 17 : 18; }

// Where a layer's block begins in a message.
std::vector<int64_t> block_starts(const std::vector<Layer>& layers, int64_t first, int bits,
                                  int64_t bucket) {
  std::vector<int64_t> starts;
  for (const Layer& layer : layers) {
    starts.push_back(first);
    first += qsgd_words(layer.size, bits, bucket);
  }
  starts.push_back(first);
  return starts;
}

#if defined(__x86_64__)
template <ffi::DataType dtype>
DCT_AVX2 void load_avx2(const Layer& layer, int64_t begin, int64_t end, float* x) {
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) _mm256_storeu_ps(x + (i - begin), sum8<dtype>(layer, i));
  for (; i < end; ++i) x[i - begin] = load1(layer, i);
}
#endif

// gradient + residual.
void load(const Layer& layer, int64_t begin, int64_t end, float* x) {
#if defined(__x86_64__)
  if (has_avx2()) {
    with_dtype(layer, [&]<ffi::DataType dtype>() { load_avx2<dtype>(layer, begin, end, x); });
    return;
  }
#endif
  for (int64_t i = begin; i < end; ++i) x[i - begin] = load1(layer, i);
}

// What one step does with the layers.
struct Encoder {
  uint32_t key;
  bool live, silent;
  int bits;
  int64_t bucket;
  uint32_t* message;

  // Quantizes the buckets of a chunk into the layer's block; the residual keeps what they lose.
  void chunk(const Chunk& chunk, int64_t start) const {
    const Layer& layer = *chunk.layer;
    uint32_t* scales = message + start;
    uint32_t* codes = scales + ceil_div(layer.size, bucket);
    std::vector<float> x(size_t(std::min(bucket, layer.size))), sent(layer.residual_out ? x.size() : 0);
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += bucket) {
      const int64_t end = std::min(chunk.end, begin + bucket), n = end - begin;
      uint32_t* scale = scales + begin / bucket;
      uint32_t* words = codes + begin * bits / 32;
      load(layer, begin, end, x.data());
      if (!silent) {
        qsgd_quantize_bucket(x.data(), n, uint32_t(layer.offset + begin), key, bits, scale, words);
      }
      if (!layer.residual_out) continue;
      std::fill(sent.begin(), sent.end(), 0.0f);
      if (!silent) qsgd_add_bucket(*scale, words, n, bits, sent.data());
      float* left = layer.residual_out + begin;
      for (int64_t i = 0; i < n; ++i) left[i] = x[size_t(i)] - sent[size_t(i)];
    }
  }
};

// Trusts nothing. `starts` is where the blocks of the layers begin; its last entry is the length.
bool message_valid(const uint32_t* words, int64_t capacity, const std::vector<Layer>& layers,
                   const std::vector<int64_t>& starts, int bits, int64_t bucket) {
  if (capacity < kHeader || words[0] != (kMagic | qsgd_codec(bits)) || words[3] != 0) return false;
  const int64_t length = words[1];
  if ((length != kHeader && length != starts.back()) || length > capacity) return false;
  if (checksum(words, length) != words[5]) return false;
  for (size_t i = 0; length > kHeader && i < layers.size(); ++i) {
    if (!qsgd_scales_valid(words + starts[i], layers[i].size, bucket)) return false;
  }
  return true;
}

}  // namespace

// control = (seed, live, silent); see kernels/dispatch.py: qsgd_encode.
ffi::Error QsgdEncode(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control,
                      ffi::Buffer<ffi::U32> dense, ffi::RemainingArgs args,
                      ffi::ResultBuffer<ffi::U32> words, ffi::RemainingRets rets, int64_t bits,
                      int64_t bucket, bool feedback) {
  FlushDenormals mode;
  std::vector<Layer> layers;
  if (auto error = read_layers(args, feedback, bucket, &layers); error.failure()) return error;
  for (size_t i = 0; feedback && i < layers.size(); ++i) {
    auto residual = rets.get<ffi::Buffer<ffi::F32>>(i);
    if (!residual) return residual.error();
    layers[i].residual_out = (*residual)->typed_data();
  }
  const uint32_t* c = control.typed_data();
  uint32_t* out = words->typed_data();
  const Encoder encoder{qsgd_key(c[0]), c[1] != 0, c[2] != 0 || c[1] == 0, int(bits), bucket, out};
  const int64_t dense_words = dense.element_count(), capacity = words->element_count();
  const auto starts = block_starts(layers, kHeader + dense_words, int(bits), bucket);
  const int64_t length = encoder.silent ? kHeader : starts.back();
  if (length > capacity) return ffi::Error::Internal("a message outgrew its buffer");
  const std::vector<Chunk> chunks = make_chunks(layers, bucket);
  if (encoder.live && (feedback || !encoder.silent)) {
    parallel_for(pool, int64_t(chunks.size()), [&](int64_t i) {
      const Chunk& chunk = chunks[size_t(i)];
      encoder.chunk(chunk, starts[size_t(chunk.layer - layers.data())]);
    });
  }
  for (const Layer& layer : layers) {
    if (!encoder.live && feedback && layer.residual_out != layer.residual) {
      std::memcpy(layer.residual_out, layer.residual, size_t(layer.size) * sizeof(float));
    }
  }
  if (!encoder.silent) std::memcpy(out + kHeader, dense.typed_data(), size_t(dense_words) * 4);
  std::fill(out + length, out + capacity, 0u);
  out[0] = kMagic | qsgd_codec(int(bits));
  out[1] = uint32_t(length);
  out[2] = uint32_t(starts.back());
  out[3] = 0;
  out[4] = encoder.live ? 0 : 1;
  out[5] = checksum(out, length);
  return ffi::Error::Success();
}

// The sum of several workers' messages, added in their order; one that fails its checks adds nothing.
// The last `dense_layers` results are those that travelled whole.
ffi::Error QsgdSum(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> words, ffi::ResultBuffer<ffi::U32> ok,
                   ffi::RemainingRets rets, int64_t dense_layers, int64_t bits, int64_t bucket) {
  FlushDenormals mode;
  std::vector<Layer> layers, dense;
  int64_t dense_words = 0;
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::Buffer<ffi::F32>>(i);
    if (!buffer) return buffer.error();
    Layer layer{nullptr, ffi::DataType::F32, nullptr, (*buffer)->typed_data(),
                int64_t((*buffer)->element_count()), 0, 0};
    const bool whole = int64_t(i) >= int64_t(rets.size()) - dense_layers;
    if (whole) dense_words += layer.size;
    (whole ? dense : layers).push_back(layer);
  }
  const int64_t workers = words.dimensions()[0], capacity = words.dimensions()[1];
  const auto starts = block_starts(layers, kHeader + dense_words, int(bits), bucket);
  std::vector<const uint32_t*> bodies(size_t(workers), nullptr);  // of those that say something
  parallel_for(pool, workers, [&](int64_t w) {
    const uint32_t* message = words.typed_data() + w * capacity;
    const bool valid = message_valid(message, capacity, layers, starts, int(bits), bucket);
    ok->typed_data()[w] = valid;
    if (valid && message[1] > kHeader) bodies[size_t(w)] = message;
  });
  const std::vector<Chunk> chunks = make_chunks(layers, bucket);
  parallel_for(pool, int64_t(chunks.size()), [&](int64_t t) {
    const Chunk& chunk = chunks[size_t(t)];
    const int64_t start = starts[size_t(chunk.layer - layers.data())];
    const int64_t codes = start + ceil_div(chunk.layer->size, bucket);
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += bucket) {
      const int64_t n = std::min(chunk.end, begin + bucket) - begin;
      float* out = chunk.layer->residual_out + begin;
      std::fill_n(out, n, 0.0f);
      for (const uint32_t* body : bodies) {
        if (!body) continue;
        qsgd_add_bucket(body[start + begin / bucket], body + codes + begin * bits / 32, n, int(bits), out);
      }
    }
  });
  int64_t at = kHeader;
  for (const Layer& layer : dense) {
    std::fill_n(layer.residual_out, layer.size, 0.0f);
    for (const uint32_t* body : bodies) {
      for (int64_t i = 0; body && i < layer.size; ++i) layer.residual_out[i] += bits_to_float(body[at + i]);
    }
    at += layer.size;
  }
  return ffi::Error::Success();
}

}  // namespace dct
