// Messages of QSGD blocks: encode one, add up those of several workers.
#include "kernels/qsgd.h"

#include "kernels/blocks.h"

namespace dct {
namespace {

uint32_t qsgd_codec(int bits) { return bits == 2 ? kQsgd2Code : bits == 4 ? kQsgd4Code : kQsgd8Code; }

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
      load_sums(layer, begin, end, x.data());
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
  if (capacity < kHeader || words[word::kKind] != (kMagic | qsgd_codec(bits))) return false;
  if (words[word::kCount] != 0) return false;
  const int64_t length = words[word::kLength];
  if ((length != kHeader && length != starts.back()) || length > capacity) return false;
  if (checksum(words, length) != words[word::kChecksum]) return false;
  for (size_t i = 0; length > kHeader && i < layers.size(); ++i) {
    if (!qsgd_scales_valid(words + starts[i], layers[i].size, bucket)) return false;
  }
  return true;
}

// control = (seed, live, silent); see kernels/dispatch.py: qsgd_encode.
ffi::Error QsgdEncode(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control,
                      ffi::Buffer<ffi::U32> dense, ffi::RemainingArgs args,
                      ffi::ResultBuffer<ffi::U32> words, ffi::RemainingRets rets, int64_t bits,
                      int64_t bucket, bool feedback) {
  FlushDenormals mode;
  std::vector<Layer> layers;
  if (auto error = read_layers(args, feedback, bucket, &layers); error.failure()) return error;
  if (auto error = read_residuals_out(rets, feedback, &layers); error.failure()) return error;
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
  if (!encoder.live && feedback) keep_residuals(layers);
  if (!encoder.silent) std::memcpy(out + kHeader, dense.typed_data(), size_t(dense_words) * 4);
  std::fill(out + length, out + capacity, 0u);
  seal(out, qsgd_codec(int(bits)), length, starts.back(), encoder.live);
  return ffi::Error::Success();
}

// The sum of several workers' messages, added in their order; one that fails its checks adds nothing.
// The last `dense_layers` results are those that travelled whole.
ffi::Error QsgdSum(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> words, ffi::ResultBuffer<ffi::U32> ok,
                   ffi::RemainingRets rets, int64_t dense_layers, int64_t bits, int64_t bucket) {
  FlushDenormals mode;
  std::vector<Layer> layers, dense;
  if (auto error = read_sums(rets, dense_layers, &layers, &dense); error.failure()) return error;
  const int64_t workers = words.dimensions()[0], capacity = words.dimensions()[1];
  const auto starts = block_starts(layers, kHeader + entries_of(dense), int(bits), bucket);
  std::vector<const uint32_t*> bodies(size_t(workers), nullptr);  // of those that say something
  parallel_for(pool, workers, [&](int64_t w) {
    const uint32_t* message = words.typed_data() + w * capacity;
    const bool valid = message_valid(message, capacity, layers, starts, int(bits), bucket);
    ok->typed_data()[w] = valid;
    if (valid && message[word::kLength] > kHeader) bodies[size_t(w)] = message;
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
  sum_whole_layers(bodies, dense);
  return ffi::Error::Success();
}

}  // namespace

DCT_HANDLER(qsgd_encode, QsgdEncode, "bits", "bucket", "feedback");
DCT_HANDLER(qsgd_sum, QsgdSum, "dense_layers", "bits", "bucket");

}  // namespace dct
