// Frames: what travels over a channel in one piece, and the error of exchanges.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "common/memory.h"

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
  int64_t most;  // bytes that the frame may have: a sender must not choose how much memory we take
  Block<uint8_t> frame = {};
};

constexpr int64_t kFrameHead = 16;  // bytes before a frame's own: magic, sequence number, length

// Why an exchange has ended without a result.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dct
