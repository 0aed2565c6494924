// Whole messages on their way between workers, as they are.
#pragma once

#include <vector>

#include "transport/tasks.h"

namespace dct {

// The length of the message at the beginning of a buffer. Throws Failure if that is longer than the buffer.
int64_t used_words(const uint32_t* words, int64_t capacity);

// A copy of the message at the beginning of a buffer. Throws Failure as above.
std::vector<uint32_t> used_words(ffi::Buffer<ffi::U32>& message);

// Everybody's message, by worker.
class Gathering : public Task {
 public:
  // `bulk` as Channel::gather has it; no worker's message has more than `most_words`.
  Gathering(std::vector<uint32_t> message, bool bulk, int64_t most_words)
      : own_(std::move(message)), bulk_(bulk), most_words_(most_words) {}

  // Gathers. Each message is as long as it says afterwards; nothing else in it was checked.
  void run(Channel& channel) override;

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
  int64_t most_words_;
  std::vector<Block<uint8_t>> frames_;
  int64_t rank_ = 0;
};

}  // namespace dct
