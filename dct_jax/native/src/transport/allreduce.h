// SparCML's algorithms: all workers' vectors -> their reduction, the same bits on every worker.
#pragma once

#include "transport/sparse_vector.h"
#include "kernels/qsgd.h"

namespace dct {

enum class Algorithm : uint32_t {
  kAllGather = 0,       // everybody's vector to everybody; each worker combines all
  kRecursiveDouble = 1, // SSAR_Recursive_Double
  kSplitAllGather = 2,  // SSAR_Split_AllGather
  kDsar = 3,            // DSAR_Split_AllGather: the second half is always dense
  kDense = 4,           // the same with a dense input: a dense allreduce
};

struct Settings {
  Algorithm algorithm;
  uint32_t index_codec = kAuto;
  double delta = 1.0;  // share of a range's coordinates beyond which it is dense
  int bits = 0;        // of QSGD in the second half of kDsar; 0 sends values as they are
  int64_t bucket = 1024;
  uint32_t seed = 0;
  bool bulk = false;  // vectors are large: all workers must agree on that
};

constexpr int64_t kBulkBytes = 1 << 17;

// The result: pieces with increasing, disjoint ranges that cover all coordinates.
template <typename T>
struct Result {
  std::vector<Vec<T>> pieces;
  Meta meta;
};

template <typename T, typename O>
class Reducer {
 public:
  Reducer(Channel& channel, const Settings& settings)
      : channel_(channel), set_(settings), rank_(channel.rank()), workers_(channel.size()) {}

  Result<T> run(const Vec<T>& own, const Meta& meta) {
    if (workers_ == 1) return alone(own, meta);
    channel_.begin(kind(own.size));
    switch (set_.algorithm) {
      case Algorithm::kAllGather: return all_gather(own, meta);
      case Algorithm::kRecursiveDouble: return recursive_double(own, meta);
      default: break;
    }
    const bool large = own.size * int64_t(sizeof(T)) > workers_ * kBulkBytes;
    return set_.algorithm == Algorithm::kDense && own.dense && large ? ring(own, meta) : split(own, meta);
  }

 private:
  // What all workers must agree on.
  uint32_t kind(int64_t size) const {
    uint32_t hash = std::is_floating_point_v<T>;
    for (int64_t x : {int64_t(set_.algorithm), int64_t(sizeof(T)), int64_t(O::kOp), size, int64_t(set_.bits),
                      set_.bucket}) {
      hash = mix(hash * 31 + uint32_t(x) + 1);
    }
    return hash;
  }

  int64_t delta(int64_t size) const { return int64_t(set_.delta * double(size)); }

  Result<T> alone(const Vec<T>& own, const Meta& meta) {
    Result<T> result;
    result.meta = meta;
    result.pieces.push_back(combine<O, T>({&own}, delta(own.size)));
    result.meta.present = uint64_t(present<O>(result.pieces[0]));
    return result;
  }

  // Sends a parcel to some workers and receives one from each of them.
  std::vector<Incoming> trade(const std::vector<Outgoing>& out, const std::vector<int>& from) {
    std::vector<Incoming> in;
    for (int peer : from) in.push_back({peer, {}});
    channel_.exchange(out, &in);
    return in;
  }

  // Everybody's parcel to everybody: (P - 1) times the parcel, which for disjoint indices no algorithm can
  // beat. The paper doubles recursively, which saves messages and costs rounds.
  Result<T> all_gather(const Vec<T>& own, const Meta& meta) {
    Parcel<T> mine = wrap(own, set_.index_codec, meta);
    std::vector<Incoming> in = channel_.gather(mine.pieces(), set_.bulk);
    Result<T> result;
    result.meta = meta;
    uint64_t sent = uint64_t(mine.bytes());
    std::vector<Vec<T>> all;
    for (const Incoming& i : in) {
      result.meta.add(head_of(i.frame).meta);
      sent += uint64_t(i.frame.size + kFrameHead);
      all.push_back(unwrap<T>(i.frame, own.begin, own.size));
    }
    result.meta.sent += sent * uint64_t(workers_ - 1);
    std::vector<const Vec<T>*> parts;
    for (const Vec<T>& v : all) parts.push_back(&v);
    parts.insert(parts.begin() + rank_, &own);
    result.pieces.push_back(combine<O, T>(parts, delta(own.size)));
    result.meta.present = uint64_t(present<O>(result.pieces[0]));
    return result;
  }

  // Doubling needs a power of two: workers beyond it fold theirs into one below and get the result.
  Result<T> recursive_double(const Vec<T>& own, const Meta& meta) {
    int two = 1;
    while (2 * two <= workers_) two *= 2;
    const int extra = workers_ - two;
    Vec<T> sum = slice(own, own.begin, own.size);
    Meta all = meta;
    if (rank_ >= two) {
      Parcel<T> mine = wrap(own, set_.index_codec, meta);
      trade({{rank_ - two, mine.pieces()}}, {});
    } else {
      if (rank_ < extra) absorb(trade({}, {rank_ + two})[0], 1, &sum, &all);
      for (int distance = 1; distance < two; distance *= 2) {
        Parcel<T> mine = wrap(sum, set_.index_codec, all);
        const int partner = rank_ ^ distance;
        std::vector<Incoming> in = trade({{partner, mine.pieces()}}, {partner});
        all.sent += uint64_t(distance * mine.bytes());  // as many pairs send the same at this distance
        absorb(in[0], uint64_t(distance), &sum, &all);
      }
    }
    return hand_out(std::move(sum), all, two, extra);
  }

  // Takes a partner's parcel in, the lower worker's vector first.
  void absorb(const Incoming& in, uint64_t copies, Vec<T>* sum, Meta* meta) {
    Vec<T> theirs = unwrap<T>(in.frame, sum->begin, sum->size);
    std::vector<const Vec<T>*> parts = {sum, &theirs};
    if (in.peer < rank_) std::swap(parts[0], parts[1]);
    *sum = combine<O, T>(parts, delta(sum->size));
    meta->add(head_of(in.frame).meta);
    meta->sent += copies * uint64_t(in.frame.size + kFrameHead);
  }

  Result<T> hand_out(Vec<T> sum, Meta all, int two, int extra) {
    Result<T> result;
    if (rank_ >= two) {
      std::vector<Incoming> in = trade({}, {rank_ - two});
      sum = unwrap<T>(in[0].frame, sum.begin, sum.size);
      all = head_of(in[0].frame).meta;
    } else if (rank_ < extra) {
      Parcel<T> mine = wrap(sum, set_.index_codec, all);
      mine.head.meta.sent = all.sent += uint64_t(extra) * uint64_t(mine.bytes());
      trade({{rank_ + two, mine.pieces()}}, {});
    } else if (extra) {
      all.sent += uint64_t(extra) * uint64_t(wrap(sum, set_.index_codec, all).bytes());
    }
    result.meta = all;
    result.meta.present = uint64_t(present<O>(sum));
    result.pieces.push_back(std::move(sum));
    return result;
  }

  // Where worker w's share of the coordinates begins; a multiple of QSGD's bucket.
  int64_t begin_of(int w, int64_t total) const {
    int64_t share = ceil_div(total, workers_);
    if (set_.bits) share = ceil_div(share, set_.bucket) * set_.bucket;
    return std::min(total, share * w);
  }

  // Every worker reduces its own share of the coordinates, then shows it to all.
  Result<T> split(const Vec<T>& own, const Meta& meta) {
    const int64_t total = own.size, mine_begin = begin_of(rank_, total);
    const int64_t mine_size = begin_of(rank_ + 1, total) - mine_begin;
    std::vector<Vec<T>> shares;
    std::vector<Parcel<T>> parcels;
    shares.reserve(size_t(workers_));
    parcels.reserve(size_t(workers_));
    Meta sent;
    for (int w = 0; w < workers_; ++w) {
      shares.push_back(share(own, w));
      parcels.push_back(w == rank_ ? Parcel<T>() : wrap(shares.back(), set_.index_codec, meta));
      if (w != rank_) sent.sent += uint64_t(parcels.back().bytes());
    }
    std::vector<Incoming> in =
        channel_.exchange_all([&](int peer) { return parcels[size_t(peer)].pieces(); });
    Result<T> result;
    result.meta = meta;
    std::vector<Vec<T>> received;
    for (const Incoming& i : in) {
      received.push_back(unwrap<T>(i.frame, mine_begin, mine_size));
      result.meta.add(head_of(i.frame).meta);
    }
    std::vector<const Vec<T>*> parts;
    for (const Vec<T>& v : received) parts.push_back(&v);
    parts.insert(parts.begin() + rank_, &shares[size_t(rank_)]);
    const bool force = set_.algorithm >= Algorithm::kDsar;
    Vec<T> reduced = combine<O, T>(parts, force ? -1 : delta(mine_size));
    // Everybody knows now how much there is: an upper bound of a share of the result decides how it travels.
    const int64_t most = force ? total : std::min(total, int64_t(result.meta.entries));
    const bool bulk = most * int64_t(sizeof(T)) > workers_ * kBulkBytes;
    return show(std::move(reduced), sent, std::move(result), total, bulk);
  }

  // A large dense allreduce. Shares collect summands around the ring: the share of worker w begins at w + 1 and
  // ends, complete, at w. Then the sums go around.
  Result<T> ring(const Vec<T>& own, const Meta& meta) {
    const int next = (rank_ + 1) % workers_, before = (rank_ + workers_ - 1) % workers_;
    Meta sent = meta;
    Vec<T> sum = share(own, before);
    for (int i = 1; i < workers_; ++i) {
      const int64_t bytes = sum.size * int64_t(sizeof(T));
      std::vector<Incoming> in = trade({{next, {{sum.value, bytes}}}}, {before});
      sent.sent += uint64_t(bytes + kFrameHead);
      Vec<T> mine = share(own, (rank_ + 2 * workers_ - i - 1) % workers_);
      Block<T> added = read_values<T>(in[0].frame, 0, mine.size);
      apply_to<O>(added.begin(), mine);
      sum = std::move(mine);
      sum.own_dense(std::move(added));
    }
    return show(std::move(sum), sent, {}, own.size, true);
  }

  Vec<T> share(const Vec<T>& whole, int w) const {
    const int64_t begin = begin_of(w, whole.size);
    return slice(whole, begin, begin_of(w + 1, whole.size) - begin);
  }

  // The second half: the all-gather of the reduced shares, quantized if wished for.
  Result<T> show(Vec<T> reduced, Meta sent, Result<T> result, int64_t total, bool bulk) {
    Parcel<T> mine;
    sent.present = uint64_t(present<O>(reduced));  // before QSGD makes zeros of it
    if constexpr (std::is_same_v<T, float>) {
      if (set_.bits && set_.algorithm == Algorithm::kDsar) mine = quantize(&reduced, sent);
    }
    if (!mine.words.size) mine = wrap(reduced, set_.index_codec, sent);
    std::vector<Incoming> in = channel_.gather(mine.pieces(), bulk);
    uint64_t frames = uint64_t(mine.bytes());
    result.meta.add(sent);
    for (int w = 0, i = 0; w < workers_; ++w) {
      if (w == rank_) {
        result.pieces.push_back(std::move(reduced));
        continue;
      }
      const Block<uint8_t>& frame = in[size_t(i++)].frame;
      frames += uint64_t(frame.size + kFrameHead);
      result.meta.add(head_of(frame).meta);
      const int64_t begin = begin_of(w, total), size = begin_of(w + 1, total) - begin;
      result.pieces.push_back(open(frame, begin, size));
    }
    result.meta.sent += frames * uint64_t(workers_ - 1);
    return result;
  }

  Vec<T> open(const Block<uint8_t>& frame, int64_t begin, int64_t size) {
    if constexpr (std::is_same_v<T, float>) {
      if (head_of(frame).form == Form::kQuantized) return dequantize(frame, begin, size);
    }
    return unwrap<T>(frame, begin, size);
  }

  // What the others will decode replaces our own share, or replicas would differ.
  Parcel<float> quantize(Vec<float>* v, const Meta& meta) {
    Parcel<float> parcel;
    parcel.words = Block<uint32_t>(qsgd_words(v->size, set_.bits, set_.bucket));
    parcel.head = {Form::kQuantized, 0, 0, 0, v->size, parcel.words.size, meta};
    qsgd_quantize(v->value, v->size, v->begin, set_.seed, set_.bits, set_.bucket, parcel.words.begin());
    Block<float> decoded(v->size);
    qsgd_dequantize(parcel.words.begin(), v->size, set_.bits, set_.bucket, decoded.begin());
    v->own_dense(std::move(decoded));
    return parcel;
  }

  Vec<float> dequantize(const Block<uint8_t>& frame, int64_t begin, int64_t size) {
    const int64_t words = qsgd_words(size, set_.bits, set_.bucket);
    if (frame.size != int64_t(sizeof(ParcelHead)) + 4 * words) throw Failure("a quantized frame does not fit");
    Vec<float> out;
    out.begin = begin;
    out.size = size;
    Block<float> decoded(size);
    auto from = reinterpret_cast<const uint32_t*>(frame.begin() + sizeof(ParcelHead));
    qsgd_dequantize(from, size, set_.bits, set_.bucket, decoded.begin());
    out.own_dense(std::move(decoded));
    return out;
  }

  Channel& channel_;
  Settings set_;
  int rank_, workers_;
};

// The coordinates [begin, begin + size) of a result, `neutral` where it has none.
template <typename T>
void fill_range(const Result<T>& result, int64_t begin, int64_t size, T* to, T neutral) {
  for (const Vec<T>& piece : result.pieces) {
    const int64_t first = std::max(begin, piece.begin);
    const int64_t last = std::min(begin + size, piece.begin + piece.size);
    if (first >= last) continue;
    if (piece.dense) {
      std::copy_n(piece.value + (first - piece.begin), last - first, to + (first - begin));
      continue;
    }
    std::fill_n(to + (first - begin), last - first, neutral);
    const uint32_t* end = piece.index + piece.count;
    const uint32_t* at = std::lower_bound(piece.index, end, uint32_t(first - piece.begin));
    for (; at != end && *at < last - piece.begin; ++at) {
      to[piece.begin + *at - begin] = piece.value[at - piece.index];
    }
  }
}

// What is not neutral in a dense piece; returns its number. Every entry is written, and kept by moving on, so that
// nothing has to be guessed; into a window, as there may be no room behind the last one.
template <typename O, typename T>
int64_t write_present(const Vec<T>& piece, uint32_t* index, T* value) {
  constexpr int64_t kWindow = 512;
  uint32_t places[kWindow];
  T values[kWindow];
  int64_t n = 0;
  for (int64_t begin = 0; begin < piece.size; begin += kWindow) {
    const int64_t end = std::min(piece.size, begin + kWindow);
    int64_t m = 0;
    for (int64_t i = begin; i < end; ++i) {
      places[m] = uint32_t(piece.begin + i);
      values[m] = piece.value[i];
      m += piece.value[i] != O::neutral();
    }
    std::copy_n(places, m, index + n);
    std::copy_n(values, m, value + n);
    n += m;
  }
  return n;
}

// A result as indices and values; returns their number, -1 when it exceeds `capacity`. What is neutral in
// a dense piece is left out: absent means the same, and there may be no room for all coordinates.
template <typename O, typename T>
int64_t write_stream(const Result<T>& result, int64_t capacity, uint32_t* index, T* value) {
  int64_t n = 0;
  for (const Vec<T>& piece : result.pieces) n += present<O>(piece);
  if (n > capacity) return -1;
  for (const Vec<T>& piece : result.pieces) {
    if (piece.dense) {
      const int64_t found = write_present<O>(piece, index, value);
      index += found;
      value += found;
      continue;
    }
    for (int64_t i = 0; i < piece.count; ++i) *index++ = uint32_t(piece.begin + piece.index[i]);
    value = std::copy_n(piece.value, piece.count, value);
  }
  return n;
}

}  // namespace dct
