// Frames: what travels over a channel in one piece, and the error of exchanges.
//
// A frame is a head, a body, and a tail of four bytes with the CRC32C of both (docs/wire_format.md). The head has a
// checksum of its own, because a length that was damaged would be waited for.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/crc32c.h"
#include "common/memory.h"
#include "common/wire.h"

namespace dct {

// Bytes somewhere; they are not owned.
struct Piece {
  const void* data;
  int64_t bytes;
};

struct Outgoing {
  int peer;
  std::vector<Piece> pieces;  // sent one after the other as one frame
};

struct Incoming {
  int peer;
  int64_t most;  // bytes that the body may have: a sender must not choose how much memory we take
  Block<uint8_t> frame = {};  // the body
};

// Why an exchange has ended without a result.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Why a frame is not believed. What it says follows the name of the worker that sent it.
class BadFrame : public Failure {
 public:
  using Failure::Failure;
};

// What a frame is about, on which both ends agree before.
struct FrameName {
  uint32_t kind, sequence;
  bool checked = true;  // false: without checksums, to measure what they cost
};

struct FrameHead {
  uint32_t magic, kind;
  uint64_t length;  // of the body
  uint32_t sequence, check;

  // Of all that comes before it.
  uint32_t sum() const { return crc32c(0, this, kFrameHead - 4); }
};
static_assert(sizeof(FrameHead) == kFrameHead);

// Bytes that are summed, sent or received in one go: few enough that they are still in the cache for the next of these.
constexpr int64_t kFrameStretch = 1 << 18;

// A frame on its way out. It is summed in stretches, each right before the system copies it.
class FrameWriter {
 public:
  // The pieces must stay where they are, and so must this.
  FrameWriter(const std::vector<Piece>& pieces, const FrameName& name) : checked_(name.checked) {
    head_ = {kFrameMagic, name.kind, 0, name.sequence, 0};
    for (const Piece& piece : pieces) head_.length += uint64_t(piece.bytes);
    head_.check = checked_ ? head_.sum() : 0;
    left_.push_back({&head_, kFrameHead});
    for (const Piece& piece : pieces) {
      if (piece.bytes) left_.push_back(piece);
    }
  }
  FrameWriter(const FrameWriter&) = delete;

  int64_t bytes() const { return int64_t(head_.length) + kFrameBytes; }

  // What is to be sent next. Empty when all was.
  std::vector<iovec>& next() {
    if (at_ == stretch_.size()) prepare();
    if (at_) stretch_.erase(stretch_.begin(), stretch_.begin() + int64_t(at_));
    at_ = 0;
    return stretch_;
  }

  bool done() const { return ended_ && at_ == stretch_.size(); }

  // So many bytes of `next` were sent.
  void advance(size_t sent) {
    while (at_ < stretch_.size() && sent >= stretch_[at_].iov_len) sent -= stretch_[at_++].iov_len;
    if (at_ == stretch_.size()) return;
    stretch_[at_].iov_base = static_cast<char*>(stretch_[at_].iov_base) + sent;
    stretch_[at_].iov_len -= sent;
  }

 private:
  void prepare() {
    stretch_.clear();
    at_ = 0;
    if (ended_) return;
    int64_t room = kFrameStretch;
    while (part_ < left_.size() && room) {
      Piece& piece = left_[part_];
      const int64_t n = std::min(room, piece.bytes);
      if (checked_) sum_ = crc32c(sum_, piece.data, n);
      stretch_.push_back({const_cast<void*>(piece.data), size_t(n)});
      piece = {static_cast<const uint8_t*>(piece.data) + n, piece.bytes - n};
      room -= n;
      part_ += piece.bytes == 0;
    }
    if (part_ < left_.size()) return;
    stretch_.push_back({&sum_, size_t(kFrameTail)});
    ended_ = true;
  }

  FrameHead head_;
  std::vector<Piece> left_;
  size_t part_ = 0;
  uint32_t sum_ = 0;
  bool checked_, ended_ = false;
  std::vector<iovec> stretch_;
  size_t at_ = 0;
};

// A frame on its way in: head, body, tail. Every byte is from outside. The length is checked against `to->most` before
// memory is taken for the body, and nothing is believed before the checksums are right.
class FrameReader {
 public:
  FrameReader(Incoming* to, const FrameName& name) : to_(to), name_(name) {}

  bool done() const { return got_ == kFrameHead + body() + kFrameTail && got_ >= kFrameBytes; }
  int64_t got() const { return got_; }
  Incoming* to() const { return to_; }

  // Where the next bytes belong; there is room for `count` of them. Not to be asked when all is done.
  struct Room {
    void* at;
    int64_t count;
  };
  Room room() {
    if (got_ < kFrameHead) return {reinterpret_cast<uint8_t*>(&head_) + got_, kFrameHead - got_};
    const int64_t at = got_ - kFrameHead;
    if (at < body()) return {to_->frame.begin() + at, std::min(kFrameStretch, body() - at)};
    return {reinterpret_cast<uint8_t*>(&tail_) + (at - body()), body() + kFrameTail - at};
  }

  // So many bytes have come to where `room` said. Throws BadFrame.
  void take(int64_t count) {
    const int64_t at = got_ - kFrameHead;
    got_ += count;
    if (at < 0) {
      if (got_ == kFrameHead) check_head();
    } else if (at < body()) {
      if (name_.checked) sum_ = crc32c(sum_, to_->frame.begin() + at, count);
    }
    if (got_ >= kFrameBytes && done() && name_.checked && tail_ != sum_) {
      throw BadFrame("sent a frame that was damaged on its way: its checksum is wrong");
    }
  }

 private:
  int64_t body() const { return got_ < kFrameHead ? 0 : int64_t(head_.length); }

  void check_head() {
    if (name_.checked && head_.check != head_.sum()) {
      throw BadFrame("sent a frame that was damaged on its way: the checksum of its head is wrong");
    }
    if (head_.magic != kFrameMagic) throw BadFrame("sends frames of another version than this worker's");
    if (head_.kind != name_.kind || head_.sequence != name_.sequence) {
      throw BadFrame("is in another exchange than this worker; all must run the same program");
    }
    if (head_.length > uint64_t(to_->most)) {
      throw BadFrame("sends a frame of " + std::to_string(head_.length) + " bytes where at most " +
                     std::to_string(to_->most) + " make sense");
    }
    if (name_.checked) sum_ = crc32c(0, &head_, kFrameHead);
    to_->frame = Block<uint8_t>(int64_t(head_.length));
  }

  Incoming* to_;
  FrameName name_;
  FrameHead head_{};
  uint32_t sum_ = 0, tail_ = 0;
  int64_t got_ = 0;
};

// Whether a body is one whole message of a compressor: what lies behind a shorter one would be taken for its rest.
inline bool whole_message(const Block<uint8_t>& body) {
  const auto* words = reinterpret_cast<const uint32_t*>(body.begin());
  return body.size >= 4 * kHeader && body.size == 4 * int64_t(words[word::kLength]);
}

}  // namespace dct
