// SparCML's algorithms: all workers' vectors -> their reduction, the same bits on every worker.
#pragma once

#include "sparse_vector.h"
#include "qsgd.h"

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
};

// The result: pieces with increasing, disjoint ranges that cover all coordinates.
template <typename T>
struct Result {
  std::vector<Vec<T>> pieces;
  Meta meta;

  int64_t count() const {
    int64_t n = 0;
    for (const Vec<T>& p : pieces) n += p.count;
    return n;
  }
};

template <typename T, typename O>
class Reducer {
 public:
  Reducer(Channel& channel, const Settings& settings)
      : channel_(channel), set_(settings), rank_(channel.rank()), workers_(channel.size()) {}

  Result<T> run(const Vec<T>& own, const Meta& meta) {
    if (workers_ == 1) return alone(own, meta);
    switch (set_.algorithm) {
      case Algorithm::kAllGather: return all_gather(own, meta);
      case Algorithm::kRecursiveDouble: return recursive_double(own, meta);
      default: return split(own, meta);
    }
  }

 private:
  int64_t delta(int64_t size) const { return int64_t(set_.delta * double(size)); }

  Result<T> alone(const Vec<T>& own, const Meta& meta) {
    Result<T> result;
    result.meta = meta;
    result.pieces.push_back(combine<O, T>({&own}, delta(own.size)));
    return result;
  }

  // Sends a parcel to some workers and receives one from each of them.
  std::vector<Incoming> trade(const std::vector<Outgoing>& out, const std::vector<int>& from) {
    std::vector<Incoming> in;
    for (int peer : from) in.push_back({peer, {}});
    channel_.exchange(out, &in);
    return in;
  }

  // Everybody's parcel to everybody: one round, and (P - 1) times the parcel, which for disjoint
  // indices no algorithm can beat. The paper doubles recursively, which saves messages and costs rounds.
  std::vector<Incoming> gather(const std::vector<Piece>& pieces) {
    return channel_.exchange_all([&](int) { return pieces; });
  }

  Result<T> all_gather(const Vec<T>& own, const Meta& meta) {
    Parcel<T> mine = wrap(own, set_.index_codec, meta);
    std::vector<Incoming> in = gather(mine.pieces());
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
      shares.push_back(slice(own, begin_of(w, total), begin_of(w + 1, total) - begin_of(w, total)));
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
    return show(std::move(reduced), sent, std::move(result), total);
  }

  // The second half: the all-gather of the reduced shares, quantized if wished for.
  Result<T> show(Vec<T> reduced, const Meta& sent, Result<T> result, int64_t total) {
    Parcel<T> mine;
    if constexpr (std::is_same_v<T, float>) {
      if (set_.bits && set_.algorithm == Algorithm::kDsar) mine = quantize(&reduced, sent);
    }
    if (!mine.words.size) mine = wrap(reduced, set_.index_codec, sent);
    std::vector<Incoming> in = gather(mine.pieces());
    uint64_t frames = uint64_t(mine.bytes());
    result.meta.sent += sent.sent;
    for (int w = 0, i = 0; w < workers_; ++w) {
      if (w == rank_) {
        result.pieces.push_back(std::move(reduced));
        continue;
      }
      const Block<uint8_t>& frame = in[size_t(i++)].frame;
      frames += uint64_t(frame.size + kFrameHead);
      result.meta.sent += head_of(frame).meta.sent;
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

// A result as indices and values; false when it has more than `capacity` entries.
template <typename T>
bool write_stream(const Result<T>& result, int64_t capacity, uint32_t* index, T* value) {
  if (result.count() > capacity) return false;
  for (const Vec<T>& piece : result.pieces) {
    for (int64_t i = 0; i < piece.count; ++i) {
      *index++ = uint32_t(piece.begin + (piece.dense ? i : piece.index[i]));
    }
    value = std::copy_n(piece.value, piece.count, value);
  }
  return true;
}

}  // namespace dct
