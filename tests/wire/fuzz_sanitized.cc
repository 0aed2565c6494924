// The native decoder under AddressSanitizer: random and crafted messages in buffers of their exact size, so
// that a single word read or written out of bounds ends the program. Built and run by test_fuzz.py.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "kernels/stream.h"

int main(int argc, char** argv) {
  const long messages = argc > 1 ? std::atol(argv[1]) : 100000;
  std::mt19937 rng(argc > 2 ? std::atoi(argv[2]) : 0);
  auto draw = [&](uint32_t n) { return uint32_t(rng() % n); };
  long accepted = 0, valid = 0;
  for (long m = 0; m < messages; ++m) {
    const int64_t universe = 1 + draw(m % 7 ? 300 : 200000), unit = 1 + (draw(8) == 0) * draw(5);
    const auto values = dct::Values(draw(3));
    std::vector<uint32_t> index;
    for (uint32_t at = draw(40); int64_t(at) < universe && index.size() < 200; at += 1 + draw(1 << draw(12))) {
      index.push_back(at);
    }
    const int64_t count = int64_t(index.size()), dense = draw(4);
    auto choice = dct::choose_codec(index.data(), count, universe, draw(2) ? 255 : 1 + draw(4));
    const int64_t length = dct::kHeader + dense + choice.words + dct::value_words(count * unit, values);
    const int64_t capacity = length + draw(3);
    std::unique_ptr<uint32_t[]> words(new uint32_t[size_t(capacity)]());
    dct::write_indices(index.data(), count, choice, words.get() + dct::kHeader + dense);
    words[0] = dct::kMagic | choice.codec << 8 | uint32_t(values);
    words[1] = uint32_t(length);
    words[3] = uint32_t(count);
    words[4] = uint32_t(choice.rice) << 24;
    const bool broken = draw(8) != 0;
    for (uint32_t change = 0; broken && change < 1 + draw(3); ++change) {
      uint32_t at = draw(3) ? draw(uint32_t(capacity)) : draw(6);
      words[at] = draw(3) ? words[at] ^ (1u << draw(32)) : draw(2) ? draw(2 * uint32_t(capacity)) : rng();
    }
    // Nearly always with a good checksum, or nothing behind it would ever be reached.
    if (draw(16)) words[5] = dct::checksum(words.get(), std::clamp<int64_t>(words[1], 6, capacity));
    else if (!broken) continue;
    dct::Stream stream =
        dct::read_message(words.get(), capacity, universe, unit, dense, values);
    accepted += stream.ok;
    if (stream.ok && stream.dense) {
      float sum = 0;
      for (int64_t i = 0; i < int64_t(stream.index.size()) * unit; ++i) {
        sum += dct::read_value(stream.values, i, values);
      }
      for (size_t i = 0; i < stream.index.size(); ++i) {
        if (stream.index[i] >= universe || (i && stream.index[i] <= stream.index[i - 1])) {
          std::printf("message %ld: bad index accepted\n", m);
          return 1;
        }
      }
      if (sum == 42.0f) std::printf(" ");
    }
    if (!broken) {
      ++valid;
      if (!stream.ok || stream.index != index) {
        std::printf("message %ld: a valid message was refused\n", m);
        return 1;
      }
    }
  }
  std::printf("%ld messages, %ld valid, %ld accepted\n", messages, valid, accepted);
  return 0;
}
