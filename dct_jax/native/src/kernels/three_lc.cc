// Messages of 3LC: encode one, add up those of several workers.
#include "kernels/three_lc.h"

#include "common/memory.h"

namespace dct {
namespace {

constexpr int64_t kPart = 1 << 13;        // codes of one task: five times as many entries
constexpr int64_t kStretch = 1 << 11;     // codes at a time, so that their entries stay in the first cache

// Where the codes of a layer lie among all codes, and what it is multiplied with.
struct Coded {
  const Layer* layer;
  int64_t first, bytes;
  float m = 0;
};

struct Part {
  Coded* coded;
  int64_t begin, end;  // codes of the layer
};

int64_t lay_out(const std::vector<Layer>& layers, std::vector<Coded>* coded, std::vector<Part>* parts) {
  int64_t total = 0;
  for (const Layer& layer : layers) {
    coded->push_back({&layer, total, code_bytes(layer.size)});
    total += coded->back().bytes;
  }
  for (Coded& one : *coded) {
    for (int64_t begin = 0; begin < one.bytes; begin += kPart) {
      parts->push_back({&one, begin, std::min(one.bytes, begin + kPart)});
    }
  }
  return total;
}

#if defined(__x86_64__)
template <ffi::DataType dtype>
DCT_AVX2 float largest_avx2(const Chunk& chunk) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  __m256 most = _mm256_setzero_ps();
  int64_t i = chunk.begin;
  for (; i + 8 <= chunk.end; i += 8) {
    most = _mm256_max_ps(_mm256_and_ps(sum8<dtype>(*chunk.layer, i), magnitude), most);
  }
  float lanes[8];
  _mm256_storeu_ps(lanes, most);
  float out = *std::max_element(lanes, lanes + 8);
  for (; i < chunk.end; ++i) out = std::max(out, std::fabs(load1(*chunk.layer, i)));
  return out;
}
#endif

// The largest magnitude of gradient + residual.
float largest(const Chunk& chunk) {
#if defined(__x86_64__)
  if (has_avx2()) {
    return with_dtype(*chunk.layer, [&]<ffi::DataType dtype>() { return largest_avx2<dtype>(chunk); });
  }
#endif
  float out = 0;
  for (int64_t i = chunk.begin; i < chunk.end; ++i) out = std::max(out, std::fabs(load1(*chunk.layer, i)));
  return out;
}

void find_scales(ffi::ThreadPool& pool, const std::vector<Layer>& layers, float multiplier,
                 std::vector<Coded>* coded) {
  const std::vector<Chunk> chunks = make_chunks(layers, 0);
  std::vector<float> found(chunks.size());
  parallel_for(pool, int64_t(chunks.size()), [&](int64_t i) { found[size_t(i)] = largest(chunks[size_t(i)]); });
  for (size_t i = 0; i < chunks.size(); ++i) {
    float& m = (*coded)[size_t(chunks[i].layer - layers.data())].m;
    m = std::max(m, found[i]);
  }
  for (Coded& one : *coded) one.m = ternary_scale(one.m, multiplier);
}

// How many entries of stream k (of five) have a code in [begin, end).
int64_t entries_in(const Coded& coded, int k, int64_t begin, int64_t end) {
  return std::clamp<int64_t>(coded.layer->size - k * coded.bytes - begin, 0, end - begin);
}

// Quantizes and folds one part; `residual` (if any: the layer's new one) keeps what that loses.
void fold_part(const Part& part, uint8_t* codes, float* residual) {
  const Coded& coded = *part.coded;
  const Layer& layer = *coded.layer;
  float x[kStretch];
  for (int64_t begin = part.begin; begin < part.end; begin += kStretch) {
    const int64_t end = std::min(part.end, begin + kStretch);
    uint8_t* code = codes + coded.first + begin;
    std::memset(code, 0, size_t(end - begin));
    for (int k = 0; k < 5; ++k) {
      const int64_t at = k * coded.bytes + begin, n = entries_in(coded, k, begin, end);
      load_sums(layer, at, at + n, x);
      ternary_digits(x, n, Scale(coded.m), code, residual ? residual + at : nullptr);
      for (int64_t i = n; i < end - begin; ++i) code[i] = uint8_t(code[i] * 3);  // a pad is the digit 0
    }
  }
}

// A part for which there was no room: its entries go back from code `begin` on.
void put_back(const Part& part, int64_t begin, const uint8_t* codes) {
  const Coded& coded = *part.coded;
  float* out[5];
  int64_t count[5];
  begin = std::max(begin, part.begin);
  if (begin >= part.end) return;
  for (int k = 0; k < 5; ++k) {
    out[k] = coded.layer->residual_out + k * coded.bytes + begin;
    count[k] = entries_in(coded, k, begin, part.end);
  }
  ternary_add(codes + coded.first + begin, part.end - begin, coded.m, out, count);
}

// The symbols of all parts, and how they are joined to a message's body.
class Symbols {
 public:
  Symbols(ffi::ThreadPool& pool, const std::vector<Part>& parts, int64_t total, const uint8_t* codes, bool runs)
      : parts_(parts), symbols_(total + int64_t(parts.size() + 1) * kVector), found_(parts.size()) {
    parallel_for(pool, int64_t(parts.size()), [&](int64_t i) {
      const Part& part = parts[size_t(i)];
      const uint8_t* code = codes + part.coded->first;
      if (runs) {
        found_[size_t(i)] = zero_run(code, part.begin, part.end, part.coded->bytes, place(i));
      } else {
        std::memcpy(place(i), code + part.begin, size_t(part.end - part.begin));
        found_[size_t(i)] = {part.end - part.begin, 0};
      }
    });
  }

  int64_t bytes() const {
    int64_t total = 0;
    for (const Runs& one : found_) total += one.bytes();
    return total;
  }

  // Writes at most `room` bytes, all layers cut alike, and how many of each; returns how many in all. `covered` learns
  // how many codes of a layer were said.
  int64_t join(const std::vector<Coded>& coded, int64_t room, uint8_t* out, uint32_t* sizes,
               std::vector<int64_t>* covered) {
    const Cut cut(room, bytes());
    int64_t at = 0, before = 0;
    size_t p = 0;
    for (size_t layer = 0; layer < coded.size(); ++layer) {
      const size_t first = p;
      int64_t wanted = 0, taken = 0;
      for (; p < parts_.size() && parts_[p].coded == &coded[layer]; ++p) wanted += found_[p].bytes();
      before += wanted;
      const int64_t share = cut.at(before) - at;
      for (size_t i = first; i < p; ++i) {
        const int64_t take = std::min(found_[i].bytes(), share - taken);
        write(int64_t(i), take, out + at);
        at += take;
        taken += take;
      }
      sizes[layer] = uint32_t(taken);
      covered->push_back(taken == wanted ? coded[layer].bytes : codes_of(out + at - taken, taken));
    }
    return at;
  }

 private:
  // A part's symbols; vector stores may run over their end.
  uint8_t* place(int64_t i) {
    const Part& part = parts_[size_t(i)];
    return symbols_.begin() + part.coded->first + part.begin + i * kVector;
  }

  void write(int64_t i, int64_t take, uint8_t* out) {
    const Runs& runs = found_[size_t(i)];
    std::memcpy(out, place(i), size_t(std::min(take, runs.symbols)));
    int64_t left = take - runs.symbols, run = runs.last_run;
    for (out += runs.symbols; left > 0; --left, run -= kLongestRun) {
      out = put_run(std::min(run, kLongestRun), out);
    }
  }

  static int64_t codes_of(const uint8_t* symbols, int64_t n) {
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += symbols[i] < kFirstRun ? 1 : symbols[i] - (kFirstRun - 2);
    return total;
  }

  const std::vector<Part>& parts_;
  Block<uint8_t> symbols_;
  std::vector<Runs> found_;
};

// A part of which nothing is sent.
void keep_all(const Part& part) {
  const Coded& coded = *part.coded;
  for (int k = 0; k < 5; ++k) {
    const int64_t at = k * coded.bytes + part.begin;
    load_sums(*coded.layer, at, at + entries_in(coded, k, part.begin, part.end), coded.layer->residual_out + at);
  }
}

// control = (live, silent, budget); see kernels/dispatch.py: three_lc_encode.
ffi::Error ThreeLcEncode(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> dense,
                         ffi::RemainingArgs args, ffi::ResultBuffer<ffi::U32> words, ffi::RemainingRets rets,
                         float multiplier, bool zero_runs, bool feedback) {
  FlushDenormals mode;
  std::vector<Layer> layers;
  if (auto error = read_layers(args, feedback, 0, &layers); error.failure()) return error;
  if (auto error = read_residuals_out(rets, feedback, &layers); error.failure()) return error;
  std::vector<Coded> coded;
  std::vector<Part> parts;
  const int64_t total = lay_out(layers, &coded, &parts);
  const uint32_t* c = control.typed_data();
  const bool live = c[0] != 0, silent = c[1] != 0 || !live;
  uint32_t* out = words->typed_data();
  const int64_t capacity = words->element_count(), dense_words = dense.element_count();
  const int64_t fixed = kHeader + dense_words + 2 * int64_t(layers.size());
  if (!live && feedback) keep_residuals(layers);
  if (!live) {
    seal(out, kThreeLcCode, kHeader, fixed, false);
    std::fill(out + kHeader, out + capacity, 0u);
    return ffi::Error::Success();
  }
  find_scales(pool, layers, multiplier, &coded);
  Block<uint8_t> codes(total + kVector);
  parallel_for(pool, int64_t(parts.size()), [&](int64_t i) {
    const Part& part = parts[size_t(i)];
    fold_part(part, codes.begin(), silent ? nullptr : part.coded->layer->residual_out);
  });
  Symbols symbols(pool, parts, total, codes.begin(), zero_runs);
  const int64_t wanted = fixed + ceil_div(symbols.bytes(), 4);
  int64_t length = kHeader;
  if (!silent) {
    if (fixed > capacity) return ffi::Error::Internal("a message outgrew its buffer");
    const int64_t room = 4 * std::clamp<int64_t>(int64_t(c[2]) - fixed, 0, capacity - fixed);
    std::memcpy(out + kHeader, dense.typed_data(), size_t(dense_words) * 4);
    uint32_t* scales = out + kHeader + dense_words;
    for (size_t i = 0; i < coded.size(); ++i) scales[i] = float_to_bits(coded[i].m);
    std::vector<int64_t> covered;
    const int64_t bytes = symbols.join(coded, room, reinterpret_cast<uint8_t*>(out + fixed),
                                       scales + coded.size(), &covered);
    std::memset(reinterpret_cast<uint8_t*>(out + fixed) + bytes, 0, size_t(-bytes & 3));
    length = fixed + ceil_div(bytes, 4);
    for (const Part& part : parts) {
      if (feedback) put_back(part, covered[size_t(part.coded - coded.data())], codes.begin());
    }
  } else if (feedback) {
    parallel_for(pool, int64_t(parts.size()), [&](int64_t i) { keep_all(parts[size_t(i)]); });
  }
  std::fill(out + length, out + capacity, 0u);
  seal(out, kThreeLcCode, length, wanted, true);
  return ffi::Error::Success();
}

// A message of which nothing is believed before it is checked.
struct Reader {
  const uint32_t* words;
  const std::vector<Coded>& coded;
  int64_t fixed;

  const uint32_t* scales() const { return words + fixed - 2 * int64_t(coded.size()); }
  const uint32_t* sizes() const { return words + fixed - int64_t(coded.size()); }
  bool empty() const { return words[word::kLength] == kHeader; }

  bool valid(int64_t capacity) const {
    if (capacity < kHeader || words[word::kKind] != (kMagic | kThreeLcCode)) return false;
    const int64_t length = words[word::kLength];
    if (words[word::kCount] != 0 || length < kHeader || length > capacity) return false;
    if (checksum(words, length) != words[word::kChecksum]) return false;
    if (empty()) return true;
    if (length < fixed) return false;
    int64_t bytes = 0;
    for (size_t i = 0; i < coded.size(); ++i) {
      if (int64_t(sizes()[i]) > coded[i].bytes || scales()[i] > float_to_bits(FLT_MAX)) return false;
      bytes += sizes()[i];
    }
    return length == fixed + ceil_div(bytes, 4);
  }

  bool expand(uint8_t* codes) const {
    const uint8_t* symbols = reinterpret_cast<const uint8_t*>(words + fixed);
    for (size_t i = 0; i < coded.size(); ++i) {
      if (expand_runs(symbols, sizes()[i], codes + coded[i].first, coded[i].bytes) < 0) return false;
      symbols += sizes()[i];
    }
    return true;
  }
};

// The sum of several workers' messages, added in their order; one that fails its checks adds nothing.
// The last `dense_layers` results are those that travelled whole.
ffi::Error ThreeLcSum(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> words, ffi::ResultBuffer<ffi::U32> ok,
                      ffi::RemainingRets rets, int64_t dense_layers) {
  FlushDenormals mode;
  std::vector<Layer> layers, dense;
  if (auto error = read_sums(rets, dense_layers, &layers, &dense); error.failure()) return error;
  std::vector<Coded> coded;
  std::vector<Part> parts;
  const int64_t total = lay_out(layers, &coded, &parts);
  const int64_t workers = words.dimensions()[0], capacity = words.dimensions()[1];
  const int64_t fixed = kHeader + entries_of(dense) + 2 * int64_t(layers.size()), each = total + kVector;
  Block<uint8_t> codes(workers * each);
  std::vector<const uint32_t*> bodies(size_t(workers), nullptr);  // of those that say something
  parallel_for(pool, workers, [&](int64_t w) {
    const Reader reader{words.typed_data() + w * capacity, coded, fixed};
    bool valid = reader.valid(capacity);
    if (valid && !reader.empty()) valid = reader.expand(codes.begin() + w * each);
    ok->typed_data()[w] = valid;
    if (valid && !reader.empty()) bodies[size_t(w)] = reader.words;
  });
  parallel_for(pool, int64_t(parts.size()), [&](int64_t i) {
    const Coded& one = *parts[size_t(i)].coded;
    for (int64_t begin = parts[size_t(i)].begin; begin < parts[size_t(i)].end; begin += kStretch) {
      const int64_t end = std::min(parts[size_t(i)].end, begin + kStretch);
      float* out[5];
      int64_t count[5];
      for (int k = 0; k < 5; ++k) {
        out[k] = one.layer->residual_out + k * one.bytes + begin;
        count[k] = entries_in(one, k, begin, end);
        std::fill_n(out[k], count[k], 0.0f);
      }
      for (int64_t w = 0; w < workers; ++w) {
        if (!bodies[size_t(w)]) continue;
        const Reader reader{bodies[size_t(w)], coded, fixed};
        const float m = bits_to_float(reader.scales()[&one - coded.data()]);
        ternary_add(codes.begin() + w * each + one.first + begin, end - begin, m, out, count);
      }
    }
  });
  sum_whole_layers(bodies, dense);
  return ffi::Error::Success();
}

}  // namespace

DCT_HANDLER(three_lc_encode, ThreeLcEncode, "multiplier", "zero_runs", "feedback");
DCT_HANDLER(three_lc_sum, ThreeLcSum, "dense_layers");

}  // namespace dct
