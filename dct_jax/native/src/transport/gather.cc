#include "transport/gather.h"

#include <cstring>

#include "common/wire.h"

namespace dct {
namespace {

constexpr uint32_t kGatherKind = 0x6A7, kScatterKind = 0x5CA;  // no reduction hashes to them but by chance

// Ends the exchange unless a frame is one message, whole.
void check_message(Channel& channel, const Incoming& in) {
  if (whole_message(in.frame)) return;
  channel.fail(in.peer, "sent a message of " + std::to_string(in.frame.size) +
                            " bytes, which is not what its header says");
}

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

// control = (bulk). Everybody's message, a row each.
ffi::Error GatherMessages(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> message, ffi::ResultBuffer<ffi::U32> out,
                          int64_t number) {
  return guarded([&] {
    Gathering task(used_words(message), control.typed_data()[0] != 0, int64_t(message.element_count()));
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
      on->begin(kScatterKind, "messages to their owners");
      auto pieces = [&](int peer) -> std::vector<Piece> {
        return {{row(peer), 4 * used_words(row(peer), capacity)}};
      };
      std::vector<Incoming> all = on->exchange_all(pieces, 4 * capacity);
      for (const Incoming& one : all) check_message(*on, one);
      return all;
    });
    const int64_t me = on->rank();
    std::memcpy(out->typed_data() + me * capacity, row(me), size_t(4 * used_words(row(me), capacity)));
    for (const Incoming& one : in) {
      std::memcpy(out->typed_data() + one.peer * capacity, one.frame.begin(), size_t(one.frame.size));
    }
    return ffi::Error::Success();
  });
}

}  // namespace

DCT_HANDLER(gather_messages, GatherMessages, "channel");
DCT_HANDLER(scatter_messages, ScatterMessages, "channel");

int64_t used_words(const uint32_t* words, int64_t capacity) {
  const int64_t length = capacity > 1 ? words[1] : 0;
  if (length < kHeader || length > capacity) throw Failure("a message is longer than its buffer");
  return length;
}

std::vector<uint32_t> used_words(ffi::Buffer<ffi::U32>& message) {
  const uint32_t* words = message.typed_data();
  return {words, words + used_words(words, int64_t(message.element_count()))};
}

void Gathering::run(Channel& channel) {
  channel.begin(kGatherKind, "an all-gather of messages");
  std::vector<Incoming> in = channel.gather({{own_.data(), int64_t(4 * own_.size())}}, bulk_, 4 * most_words_);
  frames_.resize(size_t(channel.size()));
  for (Incoming& i : in) {
    check_message(channel, i);
    frames_[size_t(i.peer)] = std::move(i.frame);
  }
  rank_ = channel.rank();
}

}  // namespace dct
