// Whole messages: encode one, add up those of several workers, take one back into the residual.
#include "kernels/targets.h"

namespace dct {
namespace {

// control = (count, wanted count, flags, empty, budget in words); see kernels/dispatch.py: encode.
ffi::Error Encode(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> index,
                  ffi::Buffer<ffi::F32> value, ffi::Buffer<ffi::U32> dense,
                  ffi::ResultBuffer<ffi::U32> words, int64_t universe, int64_t unit,
                  int64_t index_codec, int64_t value_codec) {
  FlushDenormals mode;
  const uint32_t* c = control.typed_data();
  const bool empty = c[3] != 0;
  const int64_t count = empty ? 0 : c[0], wanted_count = c[1];
  const int64_t capacity = words->element_count(), dense_words = dense.element_count();
  const Values values = Values(value_codec);
  uint32_t* out = words->typed_data();
  if (count > int64_t(index.element_count())) {
    return ffi::Error::InvalidArgument("more entries than the arrays hold");
  }
  IndexChoice choice = choose_codec(index.typed_data(), count, universe, uint32_t(index_codec));
  int64_t length = kHeader, fixed = kHeader + dense_words;
  if (empty) {
    choice = {kNone, 0, 0};
  } else {
    length = fixed + choice.words + value_words(count * unit, values);
  }
  int64_t wanted = length;
  if (wanted_count != count || empty) {
    wanted = fixed + index_bound(wanted_count, universe, uint32_t(index_codec)) +
             value_words(wanted_count * unit, values);
  }
  if (length > capacity) return ffi::Error::Internal("a message outgrew its buffer");
  std::fill_n(out, std::min<int64_t>(capacity, std::max<int64_t>(length, c[4])), 0u);
  out[word::kKind] = kMagic | choice.codec << 8 | uint32_t(values);
  out[word::kLength] = uint32_t(length);
  out[word::kWanted] = uint32_t(wanted);
  out[word::kCount] = uint32_t(count);
  out[word::kFlags] = uint32_t(choice.rice) << 24 | (c[2] & 0xFF);
  if (!empty) {
    std::memcpy(out + kHeader, dense.typed_data(), size_t(dense_words) * 4);
    write_indices(index.typed_data(), count, choice, out + fixed);
    write_values(value.typed_data(), count * unit, values, out + fixed + choice.words);
  }
  out[word::kChecksum] = checksum(out, length);
  return ffi::Error::Success();
}

// The sum of several workers' messages, added in their order; a message that fails its checks adds
// nothing and is reported.
ffi::Error UnpackSum(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> words,
                     ffi::ResultBuffer<ffi::U32> ok, ffi::RemainingRets rets, int64_t dense_layers,
                     int64_t unit, int64_t value_codec) {
  FlushDenormals mode;
  Targets targets;
  if (auto error = read_targets(rets, dense_layers, unit, &targets); error.failure()) return error;
  const Values codec = Values(value_codec);
  const int64_t workers = words.dimensions()[0], capacity = words.dimensions()[1];
  const int64_t dense_words = value_words(targets.dense_values, codec);
  std::vector<Stream> streams(static_cast<size_t>(workers));
  auto read = [&](int64_t w) {
    streams[size_t(w)] = read_message(words.typed_data() + w * capacity, capacity,
                                      targets.universe, unit, dense_words, codec);
    ok->typed_data()[w] = streams[size_t(w)].ok;
  };
  parallel_for(pool, workers, read);
  sum_streams(pool, streams, targets, unit, codec);
  return ffi::Error::Success();
}

// control = (mode): 0 leaves the residuals alone, 1 clears them, 2 takes this worker's own message
// back into them. In place where the residuals are donated, so that mode 0 costs nothing.
ffi::Error Settle(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> words, ffi::RemainingArgs args,
                  ffi::RemainingRets rets, int64_t dense_layers, int64_t unit, int64_t value_codec) {
  FlushDenormals mode;
  Targets targets;
  if (auto error = read_targets(rets, dense_layers, unit, &targets); error.failure()) return error;
  const uint32_t what = control.typed_data()[0];
  for (size_t i = 0; i < rets.size(); ++i) {
    auto from = args.get<ffi::Buffer<ffi::F32>>(i);
    if (!from) return from.error();
    auto to = rets.get<ffi::Buffer<ffi::F32>>(i);
    float* data = (*to)->typed_data();
    if (what == 1) {
      std::fill_n(data, from->element_count(), 0.0f);
    } else if (data != from->typed_data()) {
      std::memcpy(data, from->typed_data(), from->size_bytes());
    }
  }
  if (what != 2) return ffi::Error::Success();
  const Values codec = Values(value_codec);
  Stream stream = read_message(words.typed_data(), words.element_count(), targets.universe, unit,
                               value_words(targets.dense_values, codec), codec);
  if (!stream.ok) return ffi::Error::Internal("a worker cannot read its own message");
  scatter_add(stream, targets, 0, targets.universe, unit, codec);
  add_dense(stream, targets, codec);
  return ffi::Error::Success();
}

}  // namespace

DCT_HANDLER(encode, Encode, "universe", "unit", "index_codec", "value_codec");
DCT_HANDLER(unpack_sum, UnpackSum, "dense_layers", "unit", "value_codec");
DCT_HANDLER(settle, Settle, "dense_layers", "unit", "value_codec");

}  // namespace dct
