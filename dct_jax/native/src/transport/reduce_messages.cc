// Messages of sparse streams, reduced over a channel in one piece or in the background.
#include "kernels/targets.h"
#include "transport/gather.h"
#include "transport/message_form.h"

namespace dct {
namespace {

// Words of a message that did not fit.
uint64_t missing_words(const uint32_t* words) {
  return words[word::kWanted] > words[word::kLength] ? words[word::kWanted] - words[word::kLength] : 0;
}

// Messages of sparse streams, reduced by one of the algorithms or gathered as they are.
class MessageReduction : public Task {
 public:
  MessageReduction(MessageForm form, std::vector<uint32_t> message, Block<float> pending)
      : form_(std::move(form)), message_(std::move(message)), pending_(std::move(pending)),
        checksum_(message_[word::kChecksum]) {}

  // Whether this is what a program that waits with that message means.
  bool is(const Settings& settings, uint32_t checksum) const {
    return form_.settings.seed == settings.seed && form_.settings.algorithm == settings.algorithm &&
           checksum_ == checksum;
  }

  void run(Channel& channel) override {
    if (form_.settings.algorithm == Algorithm::kAllGather) {
      gathering_ = std::make_unique<Gathering>(std::move(message_), form_.settings.bulk, form_.most_words());
      gathering_->run(channel);
      return;
    }
    Meta meta;
    Stream stream = form_.read(message_.data(), int64_t(message_.size()));
    if (!stream.ok) throw Failure("a worker cannot read its own message");
    meta.nonfinite = message_[word::kFlags] & kNonfinite;
    meta.wanted = message_[word::kWanted];
    Vec<float> own;
    if (pending_.size) {
      own.size = pending_.size;
      own.dense = true;
      own.count = own.size;
      own.value = pending_.begin();
      meta.encoded = uint64_t(pending_.size) + kHeader;
      meta.entries = uint64_t(pending_.size);
    } else {
      own = vector_of(stream, form_);
      meta.encoded = message_.size();
      meta.missing = missing_words(message_.data());
      meta.entries = form_.entries_of(stream);
    }
    using Sum = Operation<float, Op::kSum>;
    result_ = reduce_vectors<float, Sum>(channel, form_.settings, own, meta, form_.units());
  }

  void write(ffi::ThreadPool& pool, uint32_t* info, const Targets& targets) {
    Meta meta = gathering_ ? add_up(pool, targets) : place(pool, targets);
    const uint64_t workers = uint64_t(workers_);
    const auto mean = [&](uint64_t sum) {
      return uint32_t(std::min<uint64_t>((sum + workers - 1) / workers, UINT32_MAX));
    };
    info[0] = uint32_t(meta.nonfinite);
    info[1] = uint32_t(meta.corrupt);
    info[2] = uint32_t(meta.wanted);
    info[3] = mean(meta.encoded);
    info[4] = mean(meta.missing);
    info[5] = mean(meta.entries);
    info[6] = mean(meta.sent);
    info[7] = uint32_t(union_);
  }

  void set_workers(int64_t workers) { workers_ = workers; }

 private:
  // Decodes everybody's message into the layers.
  Meta add_up(ffi::ThreadPool& pool, const Targets& targets) {
    Meta meta;
    std::vector<Stream> streams;
    for (int64_t w = 0; w < gathering_->workers(); ++w) {
      const uint32_t* words = gathering_->words(w);
      streams.push_back(form_.read(words, gathering_->length(w)));
      meta.sent += uint64_t(4 * gathering_->length(w) + kFrameBytes) * uint64_t(workers_ - 1);
      if (!streams.back().ok) {
        ++meta.corrupt;
        continue;
      }
      meta.nonfinite += words[word::kFlags] & kNonfinite;
      meta.wanted = std::max<uint64_t>(meta.wanted, words[word::kWanted]);
      meta.encoded += words[word::kLength];
      meta.missing += missing_words(words);
      meta.entries += form_.entries_of(streams.back());
    }
    sum_streams(pool, streams, targets, form_.unit, form_.values);
    union_ = count_union(streams);
    return meta;
  }

  // How many coordinates somebody sent: the other algorithms would tell, and `auto` asks.
  uint64_t count_union(const std::vector<Stream>& streams) const {
    std::vector<uint64_t> there(size_t(ceil_div(form_.universe(), 64)));
    bool whole = false;
    for (const Stream& stream : streams) {
      if (!stream.ok) continue;
      for (uint32_t i : stream.index) there[i >> 6] |= uint64_t(1) << (i & 63);
      whole |= stream.dense != nullptr;
    }
    int64_t n = whole ? form_.dense_values() : 0, end = 0;
    for (uint64_t bits : there) n += __builtin_popcountll(bits) * form_.unit;
    for (int64_t size : form_.sparse_sizes) {  // a layer's last unit may be longer than what is left of it
      const int64_t units = ceil_div(size, form_.unit);
      end += units;
      if (units && there[size_t(end - 1) >> 6] >> ((end - 1) & 63) & 1) n -= units * form_.unit - size;
    }
    return uint64_t(n);
  }

  // Writes the reduced vector into the layers.
  Meta place(ffi::ThreadPool& pool, const Targets& targets) {
    std::vector<Target> all = targets.sparse;
    all.insert(all.end(), targets.dense.begin(), targets.dense.end());
    parallel_for(pool, int64_t(all.size()), [&](int64_t t) {
      int64_t begin = 0;
      for (int64_t i = 0; i < t; ++i) begin += all[size_t(i)].size;
      fill_range(result_, begin, all[size_t(t)].size, all[size_t(t)].data, 0.0f);
    });
    union_ = result_.meta.present;
    return result_.meta;
  }

  MessageForm form_;
  std::vector<uint32_t> message_;
  Block<float> pending_;
  uint32_t checksum_;
  std::unique_ptr<Gathering> gathering_;
  Result<float> result_;
  uint64_t union_ = 0;
  int64_t workers_ = 1;
};

// All layers' sizes, from the results that they will be written to.
ffi::Error layer_sizes(ffi::RemainingRets rets, int64_t dense_layers, MessageForm* form) {
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::Buffer<ffi::F32>>(i);
    if (!buffer) return buffer.error();
    auto& sizes = int64_t(i) < int64_t(rets.size()) - dense_layers ? form->sparse_sizes : form->dense_sizes;
    sizes.push_back(int64_t((*buffer)->element_count()));
  }
  return ffi::Error::Success();
}

Settings with_control(Settings settings, const uint32_t* control) {
  settings.algorithm = Algorithm(control[0]);
  settings.seed = control[1];
  settings.bulk = control[2] != 0;
  return settings;
}

// control = (algorithm, seed, bulk, started). Everything pending is needed by the dense algorithm alone.
std::shared_ptr<MessageReduction> make_reduction(ffi::Buffer<ffi::U32>& control,
                                                 ffi::Buffer<ffi::U32>& message, MessageForm form,
                                                 ffi::RemainingArgs args) {
  form.settings = with_control(form.settings, control.typed_data());
  Block<float> pending;
  if (form.settings.algorithm == Algorithm::kDense && args.size() > 0) {
    pending = Block<float>(form.total());
    float* to = pending.begin();
    for (size_t i = 0; i < args.size(); ++i) {
      auto layer = *args.get<ffi::Buffer<ffi::F32>>(i);
      to = std::copy_n(layer.typed_data(), layer.element_count(), to);
    }
  }
  return std::make_shared<MessageReduction>(std::move(form), used_words(message), std::move(pending));
}

// What was started with this message, finished. None after a restart, when nothing was. What somebody has started
// and never waited for is thrown away; all workers have, or nobody.
std::shared_ptr<MessageReduction> take_started(int64_t number, const Settings& settings,
                                               ffi::Buffer<ffi::U32>& message) {
  while (std::shared_ptr<Task> task = finish_task(number)) {
    auto found = std::dynamic_pointer_cast<MessageReduction>(task);
    if (found && found->is(settings, message.typed_data()[word::kChecksum])) return found;
  }
  return nullptr;
}

ffi::Error write_reduction(ffi::ThreadPool& pool, int64_t number, MessageReduction& from,
                           ffi::ResultBuffer<ffi::U32>& info, ffi::RemainingRets rets,
                           int64_t dense_layers, int64_t unit) {
  Targets targets;
  if (auto error = read_targets(rets, dense_layers, unit, &targets); error.failure()) return error;
  from.set_workers(channel(number)->size());
  from.write(pool, info->typed_data(), targets);
  return ffi::Error::Success();
}

// control = (algorithm, seed, bulk, started). Results: info, then the summed layers.
ffi::Error ReduceMessages(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> control,
                          ffi::Buffer<ffi::U32> message, ffi::RemainingArgs args,
                          ffi::ResultBuffer<ffi::U32> info, ffi::RemainingRets rets, int64_t number,
                          int64_t dense_layers, int64_t unit, int64_t value_codec,
                          int64_t index_codec, double delta, int64_t bits, int64_t bucket) {
  FlushDenormals mode;
  MessageForm form{{Algorithm::kAllGather, uint32_t(index_codec), delta, int(bits), bucket}, unit,
                   Values(value_codec), {}, {}};
  if (auto error = layer_sizes(rets, dense_layers, &form); error.failure()) return error;
  return guarded([&] {
    std::shared_ptr<MessageReduction> task;
    const uint32_t* c = control.typed_data();
    if (c[3]) task = take_started(number, with_control(form.settings, c), message);
    if (!task) {
      task = make_reduction(control, message, std::move(form), args);
      std::shared_ptr<Channel> on = channel(number);
      exchanging(*on, [&] { task->run(*on); });
    }
    return write_reduction(pool, number, *task, info, rets, dense_layers, unit);
  });
}

// `sizes` holds the layers' sizes, which here no result shows.
ffi::Error ReduceMessagesStart(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> message,
                               ffi::RemainingArgs args, ffi::ResultBuffer<ffi::U32> token,
                               int64_t number, ffi::Span<const int64_t> sizes, int64_t dense_layers,
                               int64_t unit, int64_t value_codec, int64_t index_codec, double delta,
                               int64_t bits, int64_t bucket) {
  MessageForm form{{Algorithm::kAllGather, uint32_t(index_codec), delta, int(bits), bucket}, unit,
                   Values(value_codec), {}, {}};
  const size_t cut = sizes.size() - size_t(dense_layers);
  form.sparse_sizes.assign(sizes.begin(), sizes.begin() + cut);
  form.dense_sizes.assign(sizes.begin() + cut, sizes.end());
  return guarded([&] {
    start_task(number, make_reduction(control, message, std::move(form), args));
    token->typed_data()[0] = 0;
    return ffi::Error::Success();
  });
}

}  // namespace

DCT_HANDLER(reduce_messages, ReduceMessages, "channel", "dense_layers", "unit", "value_codec", "index_codec", "delta",
            "bits", "bucket");
DCT_HANDLER(reduce_messages_start, ReduceMessagesStart, "channel", "sizes", "dense_layers", "unit", "value_codec",
            "index_codec", "delta", "bits", "bucket");

}  // namespace dct
