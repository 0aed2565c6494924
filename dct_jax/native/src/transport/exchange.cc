// Exchanges over a channel, as handlers: whole messages gathered, messages reduced, streams reduced.
// Each comes in one piece or in two, start and wait, between which the program goes on computing.
#include <deque>
#include <map>

#include "transport/allreduce.h"
#include "handlers.h"
#include "kernels/targets.h"

namespace dct {
namespace {

// A piece of work on a channel, with its own copy of what it needs.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run(Channel& channel) = 0;
};

ffi::Error guarded(const std::function<ffi::Error()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kUnavailable, std::string("dct_jax: ") + error.what());
  }
}

// Runs an exchange; when anything in it fails, the others must not wait for us.
template <typename Body>
auto exchanging(Channel& on, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    on.abandon(error.what());
    throw;
  }
}

constexpr uint32_t kGatherKind = 0x6A7, kScatterKind = 0x5CA;  // no reduction hashes to them but by chance

std::mutex started_mutex;
std::map<int64_t, std::deque<std::shared_ptr<Task>>>& started() {
  static auto* all = new std::map<int64_t, std::deque<std::shared_ptr<Task>>>;
  return *all;
}

void start_task(int64_t number, std::shared_ptr<Task> task) {
  std::shared_ptr<Channel> on = channel(number);
  std::lock_guard<std::mutex> lock(started_mutex);
  started()[number].push_back(task);
  on->start([task, raw = on.get()] {
    FlushDenormals mode;
    exchanging(*raw, [&] { task->run(*raw); });
  });
}

// The oldest task that was started on a channel, finished; none if nothing was.
std::shared_ptr<Task> finish_task(int64_t number) {
  std::shared_ptr<Task> task;
  {
    std::lock_guard<std::mutex> lock(started_mutex);
    auto& queue = started()[number];
    if (queue.empty()) return nullptr;
    task = queue.front();
    queue.pop_front();
  }
  channel(number)->wait();
  return task;
}

int64_t used_words(const uint32_t* words, int64_t capacity) {
  const int64_t length = capacity > 1 ? words[1] : 0;
  if (length < kHeader || length > capacity) throw Failure("a message is longer than its buffer");
  return length;
}

std::vector<uint32_t> used_words(ffi::Buffer<ffi::U32>& message) {
  const uint32_t* words = message.typed_data();
  return {words, words + used_words(words, int64_t(message.element_count()))};
}

// Everybody's message, by worker.
class Gathering : public Task {
 public:
  Gathering(std::vector<uint32_t> message, bool bulk) : own_(std::move(message)), bulk_(bulk) {}

  void run(Channel& channel) override {
    channel.begin(kGatherKind);
    std::vector<Incoming> in = channel.gather({{own_.data(), int64_t(4 * own_.size())}}, bulk_);
    frames_.resize(size_t(channel.size()));
    for (Incoming& i : in) frames_[size_t(i.peer)] = std::move(i.frame);
    rank_ = channel.rank();
  }

  int64_t workers() const { return int64_t(frames_.size()); }
  const uint32_t* words(int64_t w) const {
    return w == rank_ ? own_.data() : reinterpret_cast<const uint32_t*>(frames_[size_t(w)].begin());
  }
  int64_t length(int64_t w) const {
    return w == rank_ ? int64_t(own_.size()) : frames_[size_t(w)].size / 4;
  }

 private:
  std::vector<uint32_t> own_;
  bool bulk_;
  std::vector<Block<uint8_t>> frames_;
  int64_t rank_ = 0;
};

ffi::Error write_gathered(const Gathering& from, ffi::ResultBuffer<ffi::U32>& out) {
  const int64_t capacity = out->dimensions()[1];
  if (out->dimensions()[0] != from.workers()) {
    return ffi::Error::InvalidArgument("the channel has another number of workers than the axis");
  }
  for (int64_t w = 0; w < from.workers(); ++w) {
    if (from.length(w) > capacity) return ffi::Error::Internal("a message is longer than its buffer");
    std::memcpy(out->typed_data() + w * capacity, from.words(w), size_t(4 * from.length(w)));
  }
  return ffi::Error::Success();
}

// What a reduction of messages is told, and how messages read.
struct MessageForm {
  Settings settings;
  int64_t unit;
  Values values;
  std::vector<int64_t> sparse_sizes, dense_sizes;  // of the layers, in the order of the results

  int64_t universe() const {
    int64_t n = 0;
    for (int64_t s : sparse_sizes) n += ceil_div(s, unit);
    return n;
  }
  int64_t dense_values() const {
    int64_t n = 0;
    for (int64_t s : dense_sizes) n += s;
    return n;
  }
  int64_t total() const {
    int64_t n = dense_values();
    for (int64_t s : sparse_sizes) n += s;
    return n;
  }
};

// A message's entries as a vector over all layers laid end to end, those that travel whole last.
Vec<float> vector_of(const Stream& stream, const MessageForm& form) {
  Vec<float> out;
  out.size = form.total();
  const int64_t whole = stream.dense ? form.dense_values() : 0;
  const int64_t most = int64_t(stream.index.size()) * form.unit + whole;
  Block<uint32_t> index(most);
  Block<float> value(most);
  int64_t n = 0, v = 0, first_unit = 0, first = 0;
  size_t layer = 0;
  for (uint32_t u : stream.index) {
    while (u >= first_unit + ceil_div(form.sparse_sizes[layer], form.unit)) {
      first_unit += ceil_div(form.sparse_sizes[layer], form.unit);
      first += form.sparse_sizes[layer++];
    }
    const int64_t begin = (u - first_unit) * form.unit;
    const int64_t end = std::min(form.sparse_sizes[layer], begin + form.unit);
    for (int64_t i = begin; i < end; ++i) {
      index[n] = uint32_t(first + i);
      value[n++] = read_value(stream.values, v + i - begin, form.values);
    }
    v += form.unit;
  }
  const int64_t dense_begin = form.total() - form.dense_values();
  for (int64_t i = 0; i < whole; ++i) {
    index[n] = uint32_t(dense_begin + i);
    value[n++] = read_value(stream.dense, i, form.values);
  }
  out.own(std::move(index), std::move(value), n);
  return out;
}

// Messages of sparse streams, reduced by one of SparCML's algorithms or gathered as they are.
class MessageReduction : public Task {
 public:
  MessageReduction(MessageForm form, std::vector<uint32_t> message, Block<float> pending)
      : form_(std::move(form)), message_(std::move(message)), pending_(std::move(pending)),
        checksum_(message_[5]) {}

  // Whether this is what a program that waits with that message means.
  bool is(const Settings& settings, uint32_t checksum) const {
    return form_.settings.seed == settings.seed && form_.settings.algorithm == settings.algorithm &&
           checksum_ == checksum;
  }

  void run(Channel& channel) override {
    if (form_.settings.algorithm == Algorithm::kAllGather) {
      gathering_ = std::make_unique<Gathering>(std::move(message_), form_.settings.bulk);
      gathering_->run(channel);
      return;
    }
    Meta meta;
    Stream stream = read(message_.data(), int64_t(message_.size()));
    if (!stream.ok) throw Failure("a worker cannot read its own message");
    meta.nonfinite = message_[4] & 1;
    meta.wanted = message_[2];
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
      meta.missing = message_[2] > message_[1] ? message_[2] - message_[1] : 0;
      meta.entries = entries_of(stream);
    }
    result_ = Reducer<float, Operation<float, Op::kSum>>(channel, form_.settings).run(own, meta);
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
  Stream read(const uint32_t* words, int64_t length) const {
    return read_message(words, length, form_.universe(), form_.unit,
                        value_words(form_.dense_values(), form_.values), form_.values);
  }

  uint64_t entries_of(const Stream& stream) const {
    return stream.index.size() * uint64_t(form_.unit) + (stream.dense ? uint64_t(form_.dense_values()) : 0);
  }

  // Decodes everybody's message into the layers.
  Meta add_up(ffi::ThreadPool& pool, const Targets& targets) {
    Meta meta;
    std::vector<Stream> streams;
    for (int64_t w = 0; w < gathering_->workers(); ++w) {
      const uint32_t* words = gathering_->words(w);
      streams.push_back(read(words, gathering_->length(w)));
      meta.sent += uint64_t(4 * gathering_->length(w) + kFrameHead) * uint64_t(workers_ - 1);
      if (!streams.back().ok) {
        ++meta.corrupt;
        continue;
      }
      meta.nonfinite += words[4] & 1;
      meta.wanted = std::max<uint64_t>(meta.wanted, words[2]);
      meta.encoded += words[1];
      meta.missing += words[2] > words[1] ? words[2] - words[1] : 0;
      meta.entries += entries_of(streams.back());
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
    if (found && found->is(settings, message.typed_data()[5])) return found;
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

// Indices come from the caller, and everything after this writes where they say.
template <typename T>
void check_entries(const Vec<T>& v, size_t indices, size_t values) {
  if (v.dense && values != size_t(v.size)) throw Failure("a dense vector has another size than it says");
  if (v.dense) return;
  if (size_t(v.count) > std::min(indices, values)) throw Failure("a stream has fewer entries than it says");
  for (int64_t i = 0; i < v.count; ++i) {
    if (v.index[i] >= v.size || (i && v.index[i] <= v.index[i - 1])) {
      throw Failure("a stream's indices are not strictly increasing and below its size");
    }
  }
}

// Calls body with the value type and the operation that were asked for at run time.
template <typename Body>
ffi::Error with_type(ffi::DataType dtype, Op op, const Body& body) {
  auto with_op = [&](auto type) {
    using T = typename decltype(type)::type;
    switch (op) {
      case Op::kSum: return body(type, Operation<T, Op::kSum>());
      case Op::kMax: return body(type, Operation<T, Op::kMax>());
      case Op::kMin: return body(type, Operation<T, Op::kMin>());
      case Op::kProduct: return body(type, Operation<T, Op::kProduct>());
      default: return body(type, Operation<T, Op::kOr>());
    }
  };
  if (dtype == ffi::F32) return with_op(std::type_identity<float>());
  if (dtype == ffi::F64) return with_op(std::type_identity<double>());
  if (dtype == ffi::U32) return with_op(std::type_identity<uint32_t>());
  return ffi::Error::InvalidArgument("values must be float32, float64 or uint32");
}

}  // namespace

ffi::Error GatherMessages(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> message, ffi::ResultBuffer<ffi::U32> out,
                          int64_t number) {
  return guarded([&] {
    Gathering task(used_words(message), control.typed_data()[0] != 0);
    std::shared_ptr<Channel> on = channel(number);
    exchanging(*on, [&] { task.run(*on); });
    return write_gathered(task, out);
  });
}

// Row p goes to worker p; what comes back is everybody's row for this one.
ffi::Error ScatterMessages(ffi::Buffer<ffi::U32> messages, ffi::ResultBuffer<ffi::U32> out, int64_t number) {
  return guarded([&] {
    std::shared_ptr<Channel> on = channel(number);
    const int64_t workers = messages.dimensions()[0], capacity = messages.dimensions()[1];
    if (workers != on->size()) {
      return ffi::Error::InvalidArgument("the channel has another number of workers than there are messages");
    }
    auto row = [&](int64_t w) { return messages.typed_data() + w * capacity; };
    std::vector<Incoming> in = exchanging(*on, [&] {
      on->begin(kScatterKind);
      return on->exchange_all([&](int peer) -> std::vector<Piece> {
        return {{row(peer), 4 * used_words(row(peer), capacity)}};
      });
    });
    const int64_t me = on->rank();
    std::memcpy(out->typed_data() + me * capacity, row(me), size_t(4 * used_words(row(me), capacity)));
    for (const Incoming& one : in) {
      if (one.frame.size > 4 * capacity) return ffi::Error::Internal("a message is longer than its buffer");
      std::memcpy(out->typed_data() + one.peer * capacity, one.frame.begin(), size_t(one.frame.size));
    }
    return ffi::Error::Success();
  });
}

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
    if (control.typed_data()[3]) task = take_started(number, with_control(form.settings, control.typed_data()), message);
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

// control = (count, algorithm, seed, bulk). Results: info, then a dense array, or indices, values.
ffi::Error ReduceStream(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> index,
                        ffi::AnyBuffer value, ffi::ResultBuffer<ffi::U32> info,
                        ffi::RemainingRets rets, int64_t number, int64_t size, int64_t op,
                        int64_t index_codec, double delta, int64_t bits, int64_t bucket) {
  FlushDenormals mode;
  const uint32_t* c = control.typed_data();
  Settings settings{Algorithm(c[1]), uint32_t(index_codec), delta, int(bits), bucket, c[2], c[3] != 0};
  return guarded([&] {
    return with_type(value.element_type(), Op(op), [&](auto type, auto operation) {
      using T = typename decltype(type)::type;
      using O = decltype(operation);
      Vec<T> own;
      own.size = size;
      own.count = c[0];
      own.dense = index.element_count() == 0;  // no indices: everything
      if (own.dense) own.count = size;
      own.index = index.typed_data();
      own.value = static_cast<const T*>(value.untyped_data());
      std::shared_ptr<Channel> on = channel(number);
      Meta meta;
      meta.entries = uint64_t(own.count);
      Result<T> result = exchanging(*on, [&] {
        check_entries(own, index.element_count(), value.element_count());
        return Reducer<T, O>(*on, settings).run(own, meta);
      });
      uint32_t* out = info->typed_data();
      const uint64_t mean_sent = result.meta.sent / uint64_t(on->size());
      out[0] = uint32_t(result.meta.present);
      out[1] = uint32_t(std::min<uint64_t>(mean_sent, UINT32_MAX));
      if (rets.size() == 1) {
        auto dense = rets.get<ffi::AnyBuffer>(0);
        fill_range(result, 0, size, static_cast<T*>((*dense)->untyped_data()), O::neutral());
        return ffi::Error::Success();
      }
      auto indices = rets.get<ffi::Buffer<ffi::U32>>(0);
      auto values = rets.get<ffi::AnyBuffer>(1);
      const int64_t capacity = int64_t((*indices)->element_count());
      const int64_t written = write_stream<O>(result, capacity, (*indices)->typed_data(),
                                              static_cast<T*>((*values)->untyped_data()));
      if (written < 0) return ffi::Error::Internal("the reduced stream has more entries than its buffer");
      out[0] = uint32_t(written);
      // What follows means nothing, but is the same on all workers.
      std::fill((*indices)->typed_data() + written, (*indices)->typed_data() + capacity, UINT32_MAX);
      std::fill_n(static_cast<T*>((*values)->untyped_data()) + written, capacity - written, T(0));
      return ffi::Error::Success();
    });
  });
}

}  // namespace dct
