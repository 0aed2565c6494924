// Memory of exchanges. Large blocks are kept for the next exchange: a page that the system has just handed out
// costs a fault at its first touch, which for vectors of millions is more time than what is done with them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>

namespace dct {

class Memory {
 public:
  static Memory& shared() {
    static auto* one = new Memory;  // outlives every thread
    return *one;
  }

  // At least `bytes`, and how many.
  struct Piece {
    void* data;
    size_t bytes;
  };

  Piece take(size_t bytes) {
    if (bytes >= kLarge) {
      std::lock_guard<std::mutex> lock(mutex_);
      auto best = kept_.end();
      for (auto it = kept_.begin(); it != kept_.end(); ++it) {
        const bool fits = it->bytes >= bytes && it->bytes <= 2 * bytes;
        if (fits && (best == kept_.end() || it->bytes < best->bytes)) best = it;
      }
      if (best != kept_.end()) {
        Piece piece = *best;
        kept_.erase(best);
        total_ -= piece.bytes;
        return piece;
      }
    }
    void* data = std::malloc(bytes ? bytes : 1);
    if (!data) throw std::bad_alloc();
    return {data, bytes};
  }

  void give_back(Piece piece) {
    if (piece.bytes < kLarge) return std::free(piece.data);
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(piece);
    total_ += piece.bytes;
    while (total_ > kMost) {  // the oldest goes first
      total_ -= kept_.front().bytes;
      std::free(kept_.front().data);
      kept_.pop_front();
    }
  }

 private:
  static constexpr size_t kLarge = size_t(1) << 17;  // from about here on, malloc asks the system every time
  static constexpr size_t kMost = size_t(1) << 28;
  std::mutex mutex_;
  std::deque<Piece> kept_;
  size_t total_ = 0;
};

// An array of uninitialized numbers.
template <typename T>
class Block {
 public:
  int64_t size = 0;

  Block() = default;
  explicit Block(int64_t n) : size(n), data_(new_data(n)) {}
  T* begin() { return data_.get(); }
  T* end() { return data_.get() + size; }
  const T* begin() const { return data_.get(); }
  const T* end() const { return data_.get() + size; }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  struct Return {
    size_t bytes = 0;
    void operator()(T* data) const { Memory::shared().give_back({data, bytes}); }
  };
  static std::unique_ptr<T, Return> new_data(int64_t n) {
    const Memory::Piece piece = Memory::shared().take(size_t(n) * sizeof(T));
    return {static_cast<T*>(piece.data), Return{piece.bytes}};
  }
  std::unique_ptr<T, Return> data_;
};

}  // namespace dct
