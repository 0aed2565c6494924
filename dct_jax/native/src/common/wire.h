// Numbers that Python and C++ share: they travel between workers, or Python passes them to a handler.
//
// This is their one place in C++. In Python they stand in dct_jax/wire/format.py, wire/header.py and wire/exchanges.py;
// a test reads this file and compares. What they mean is in docs/wire_format.md.
#pragma once

#include <cstdint>

namespace dct {

constexpr uint32_t kMagic = 0xDC720000;  // the upper half of every message's first word: 0xDC7, version 2
constexpr int64_t kHeader = 6;           // words before a message's body
constexpr uint32_t kNonfinite = 1;       // flag: this worker's gradient was not finite

// Places of the header's words. The kind is magic, index code and value code; the flags' upper byte is the Rice
// parameter.
namespace word {
constexpr int64_t kKind = 0, kLength = 1, kWanted = 2, kCount = 3, kFlags = 4, kChecksum = 5;
}  // namespace word

// Frames of a channel: bytes before a body, behind it, and both.
constexpr uint32_t kFrameMagic = 0xDC7F0002;  // 0xDC7F, version 2
constexpr int64_t kFrameHead = 24;
constexpr int64_t kFrameTail = 4;
constexpr int64_t kFrameBytes = kFrameHead + kFrameTail;

// How indices travel. A message without entries has none of them; "auto" asks a kernel for the shortest.
enum IndexCode : uint32_t { kNone = 0, kInt32 = 1, kGap16 = 2, kBitmap = 3, kRice = 4, kAuto = 255 };

// How values travel, in the lowest byte of a message's first word.
enum class Values : uint32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };
constexpr uint32_t kQsgd2Code = 16, kQsgd4Code = 17, kQsgd8Code = 18;  // by bits
constexpr uint32_t kThreeLcCode = 19;

// How messages become a sum.
enum class Algorithm : uint32_t {
  kAllGather = 0,        // everybody's vector to everybody; each worker combines all
  kRecursiveDouble = 1,  // SSAR_Recursive_Double
  kSplitAllGather = 2,   // SSAR_Split_AllGather
  kDsar = 3,             // DSAR_Split_AllGather: the second half is always dense
  kDense = 4,            // the same with a dense input: a dense allreduce
  kUnion = 5,            // an OR of bitmaps, then a dense allreduce of the union's values
};

// Up to so many bytes of all workers' bitmaps together, kUnion gathers them in one round: a second one would cost more
// than the bytes that it saves.
constexpr int64_t kOneRoundBytes = 16384;

// Coordinate-wise operations with a neutral element; a coordinate that is not there is neutral.
enum class Op : int64_t { kSum = 0, kMax = 1, kMin = 2, kProduct = 3, kOr = 4 };

}  // namespace dct
