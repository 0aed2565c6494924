// The reader of parcels under AddressSanitizer: honest and broken frames in buffers of their exact size, so that a
// single byte read out of bounds ends the program. Built and run by test_fuzz_frames.py; `fuzz_frames FRAMES SEED`.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "transport/units.h"

namespace {

std::mt19937_64 rng;
uint64_t draw(uint64_t n) { return rng() % n; }

template <typename T>
T any_value() {
  if constexpr (std::is_same_v<T, uint32_t>) return uint32_t(rng());
  return T(int64_t(draw(2000)) - 1000) / T(64);
}

// A vector of up to a few thousand coordinates; empty, sparse or dense.
template <typename T>
dct::Vec<T> any_vector() {
  dct::Vec<T> v;
  v.begin = int64_t(draw(1000));
  v.size = int64_t(draw(draw(4) ? 200 : 5000));
  const bool dense = draw(4) == 0;
  const uint64_t step = 1 + draw(uint64_t(1) << draw(12));
  dct::Block<uint32_t> index(v.size);
  dct::Block<T> value(v.size);
  int64_t n = 0;
  for (int64_t at = dense ? 0 : int64_t(draw(step)); at < v.size; at += dense ? 1 : int64_t(1 + draw(step))) {
    index[n] = uint32_t(at);
    value[n++] = any_value<T>();
  }
  if (dense) v.own_dense(std::move(value));
  else v.own(std::move(index), std::move(value), n);
  return v;
}

template <typename T>
std::vector<uint8_t> bytes_of(const dct::Parcel<T>& parcel) {
  std::vector<uint8_t> out;
  for (const dct::Piece& piece : parcel.pieces()) {
    const auto* from = static_cast<const uint8_t*>(piece.data);
    out.insert(out.end(), from, from + piece.bytes);
  }
  return out;
}

// Numbers at which checks go wrong.
uint64_t extreme() {
  const uint64_t near = uint64_t(int64_t(draw(9)) - 4);
  return draw(4) ? (uint64_t(1) << draw(64)) + near : near;
}

// Some words more or fewer, and a head that says so.
void lengthen(std::vector<uint8_t>* frame) {
  dct::ParcelHead head;
  std::memcpy(&head, frame->data(), sizeof head);
  const int64_t words = int64_t(frame->size() - sizeof head) / 4, more = std::max(-words, int64_t(draw(9)) - 4);
  head.index_words = int64_t(uint64_t(head.index_words) + uint64_t(more));
  std::memcpy(frame->data(), &head, sizeof head);
  frame->resize(size_t(int64_t(frame->size()) + 4 * more), 1);
}

// Changes a field of the head, a few bits anywhere, or the length.
void damage(std::vector<uint8_t>* frame) {
  const uint64_t kind = draw(9);
  if (kind == 0) {
    frame->resize(draw(frame->size() + 1));
  } else if (kind == 1) {
    frame->resize(frame->size() + 1 + draw(40), uint8_t(draw(256)));
  } else if (kind <= 4 && frame->size() >= sizeof(dct::ParcelHead)) {
    const uint64_t field = draw(14), x = draw(2) ? extreme() : draw(3);  // four of 32 bits, ten of 64
    std::memcpy(frame->data() + (field < 4 ? 4 * field : 16 + 8 * (field - 4)), &x, field < 4 ? 4 : 8);
  } else if (kind == 8 && frame->size() >= sizeof(dct::ParcelHead)) {
    lengthen(frame);
  } else if (kind == 5 && frame->size() > sizeof(dct::ParcelHead)) {
    for (size_t i = sizeof(dct::ParcelHead); i < frame->size(); ++i) (*frame)[i] = uint8_t(draw(256));
  } else {
    for (uint64_t i = 0; !frame->empty() && i < 1 + draw(3); ++i) {
      (*frame)[draw(frame->size())] ^= uint8_t(1 << draw(8));
    }
  }
}

// Whether a vector that was believed is one: its indices are what others write by.
template <typename T>
bool sound(const dct::Vec<T>& v, const dct::Expected& expected) {
  if (v.begin != expected.begin || v.size != expected.size || v.count > v.size) return false;
  uint64_t bits = 0;
  for (int64_t i = 0; i < v.count; ++i) {
    uint64_t x = 0;
    std::memcpy(&x, v.value + i, sizeof(T));
    bits += x;
    if (!v.dense && (v.index[i] >= v.size || (i && v.index[i] <= v.index[i - 1]))) return false;
  }
  if (bits == 42) std::printf(" ");  // so that all values are read
  return !v.dense || v.count == v.size;
}

template <typename T>
bool equal(const dct::Vec<T>& a, const dct::Vec<T>& b) {
  if (a.dense != b.dense || a.count != b.count) return false;
  if (!a.dense && !std::equal(a.index, a.index + a.count, b.index)) return false;
  return std::equal(a.value, a.value + a.count, b.value);
}

long honest = 0, believed = 0;

// One frame; whether all is well.
template <typename T>
bool one() {
  dct::Vec<T> v = any_vector<T>();
  const int workers = int(2 + draw(8));
  bool misread = false;  // the receiver expects another quantization than the sender's
  dct::Meta meta;
  meta.nonfinite = draw(2);
  meta.entries = uint64_t(v.count);
  dct::Expected expected{v.begin, v.size, workers, {}};
  if (draw(2)) expected.quantization = {2 << draw(3), int64_t(32 * (1 + draw(4))), uint32_t(rng())};
  dct::Parcel<T> parcel = dct::wrap(v, draw(2) ? dct::kAuto : uint32_t(1 + draw(4)), meta);
  if constexpr (std::is_same_v<T, float>) {
    if (v.dense && v.size && expected.quantization.bits && draw(4)) {
      parcel = dct::wrap_quantized(&v, expected.quantization, meta);
      misread = draw(4) == 0;
      if (misread) expected.quantization = {draw(2) ? 0 : 2 << draw(3), int64_t(32 * (5 + draw(40))), 0};
    }
  } else {
    expected.quantization = {};
  }
  std::vector<uint8_t> frame = bytes_of(parcel);
  if (misread && draw(2)) {  // of the length that the receiver expects
    auto& by = expected.quantization;
    parcel.head.index_words = dct::qsgd_words(v.size, by.bits, by.bucket);
    std::memcpy(frame.data(), &parcel.head, sizeof parcel.head);
    frame.resize(sizeof parcel.head + size_t(4 * parcel.head.index_words), 0);
  }
  if (int64_t(frame.size()) > dct::most_bytes<T>(v.size)) return false;
  const bool damaged = draw(8) != 0, broken = damaged || misread;
  for (uint64_t i = 0; damaged && i < 1 + draw(3); ++i) damage(&frame);
  const int64_t length = int64_t(frame.size());
  std::unique_ptr<uint8_t[]> exact(new uint8_t[size_t(length)]);  // a vector may have room behind its end
  std::copy(frame.begin(), frame.end(), exact.get());
  dct::Meta theirs;
  try {
    const dct::Vec<T> out = dct::read_parcel<T>(exact.get(), length, expected, &theirs);
    ++believed;
    honest += !broken;
    return sound(out, expected) && theirs.plausible(workers, v.size) &&
           (broken || (equal(out, v) && theirs.entries == meta.entries));
  } catch (const dct::BadParcel&) {
    return broken;
  }
}

// Units of any lengths for a vector.
dct::Units any_units(int64_t size) {
  dct::Units units;
  for (int64_t left = size; left;) {
    const int64_t run = std::min(left, int64_t(1 + draw(draw(2) ? 40 : 5000)));
    units.append(run, int64_t(1 + draw(draw(2) ? 2 : 300)));
    left -= run;
  }
  return units;
}

// Whether a union that was believed gives every value of a vector a place within it.
template <typename T>
bool placed(const dct::Vec<T>& v, const dct::Units& units, const dct::Bitmap& all) {
  using Sum = dct::Operation<T, dct::Op::kSum>;
  const dct::Block<uint32_t> at = units.coordinates_of(all);
  const dct::Block<T> values = dct::values_at<Sum>(v, at);
  int64_t i = 0;
  for (int64_t r = 0; r < at.size; ++r) {
    if (at[r] >= v.size || (r && at[r] <= at[r - 1])) return false;
    const bool ours = i < v.count && (v.dense ? uint32_t(i) : v.index[i]) == at[r];
    if (values[r] != (ours ? v.value[i] : T(0))) return false;
    i += ours;
  }
  return i == v.count;
}

long united = 0;

// One bitmap from outside, OR-ed with ours, or shown by an owner instead of the OR; whether all is well.
template <typename T>
bool one_bitmap() {
  const dct::Vec<T> v = any_vector<T>();
  const dct::Units units = any_units(v.size);
  dct::Vec<uint32_t> own;
  own.size = units.words();
  own.own_dense(units.bitmap_of(v));
  const bool shown = draw(2), broken = draw(4) != 0;
  std::vector<uint8_t> frame = bytes_of(dct::wrap(own, dct::kAuto, {}));
  for (uint64_t i = 0; broken && i < 1 + draw(3); ++i) damage(&frame);
  std::unique_ptr<uint8_t[]> exact(new uint8_t[frame.size()]);
  std::copy(frame.begin(), frame.end(), exact.get());
  dct::Meta theirs;
  try {
    const dct::Vec<uint32_t> read =
        dct::read_parcel<uint32_t>(exact.get(), int64_t(frame.size()), {0, own.size, 2, {}}, &theirs);
    dct::check_bitmap(read, units.count());
    const dct::Vec<uint32_t> all = shown
        ? dct::combine<dct::Operation<uint32_t, dct::Op::kOr>, uint32_t>({&read}, -1)
        : dct::combine<dct::Operation<uint32_t, dct::Op::kOr>, uint32_t>({&own, &read}, -1);
    if (!dct::has_all(all.own_value, own.own_value, 0, own.size)) return broken && shown;
    ++united;
    return placed(v, units, all.own_value);
  } catch (const dct::BadParcel&) {
    return broken;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long frames = argc > 1 ? std::atol(argv[1]) : 1000000;
  rng.seed(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  for (long f = 0; f < frames; ++f) {
    if (!(f % 4 == 0 ? one<double>() : f % 4 == 1 ? one<uint32_t>() : one<float>())) {
      std::printf("frame %ld: an honest one was refused, or nonsense was believed\n", f);
      return 1;
    }
    if (f % 4 == 0 && !(f % 8 ? one_bitmap<float>() : one_bitmap<double>())) {
      std::printf("frame %ld: a bitmap led out of its vector, or an honest one was refused\n", f);
      return 1;
    }
  }
  std::printf("%ld frames, %ld honest, %ld believed, %ld unions\n", frames, honest, believed, united);
  return 0;
}
