// SparCML's algorithms: all workers' vectors -> their reduction, the same bits on every worker.
#pragma once

#include <functional>

#include "common/integers.h"
#include "transport/channel.h"
#include "transport/parcel.h"
#include "transport/result.h"

namespace dct {

// For errors.
inline const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAllGather: return "all_gather";
    case Algorithm::kRecursiveDouble: return "recursive_double";
    case Algorithm::kSplitAllGather: return "split_all_gather";
    case Algorithm::kDsar: return "dsar";
    case Algorithm::kDense: return "dense";
    case Algorithm::kUnion: return "union";
  }
  return "an unknown algorithm";
}

// What a reduction is told.
struct Settings {
  Algorithm algorithm;
  uint32_t index_codec = kAuto;
  double delta = 1.0;  // share of a range's coordinates beyond which it is dense
  int bits = 0;        // of QSGD in the second half of kDsar; 0 sends values as they are
  int64_t bucket = 1024;
  uint32_t seed = 0;
  bool bulk = false;  // vectors are large: all workers must agree on that
};

constexpr int64_t kBulkBytes = 1 << 17;  // a share of more than this goes around a ring

// One reduction of vectors of T by operation O.
template <typename T, typename O>
class Reducer {
 public:
  Reducer(Channel& channel, const Settings& settings)
      : channel_(channel), set_(settings), rank_(channel.rank()), workers_(channel.size()) {}

  // The reduction of all workers' vectors, of which this is ours, and the sum of their accounts. Throws Failure when
  // the exchange cannot be finished, and names the worker that is to blame.
  Result<T> run(const Vec<T>& own, const Meta& meta) {
    if (workers_ == 1) return alone(own, meta);
    begin(own.size);
    switch (set_.algorithm) {
      case Algorithm::kAllGather: return all_gather(own, meta);
      case Algorithm::kRecursiveDouble: return recursive_double(own, meta);
      case Algorithm::kDense: return own.dense ? reduce_dense(own, meta) : split(own, meta);
      default: return split(own, meta);
    }
  }

  // Says what the next exchanges are about, on which all workers must agree: the settings, and a vector of `size`
  // coordinates in so many units, where they count.
  void begin(int64_t size, int64_t units = 0) {
    uint32_t hash = std::is_floating_point_v<T>;
    for (int64_t x : {int64_t(set_.algorithm), int64_t(sizeof(T)), int64_t(O::kOp), size, int64_t(set_.bits),
                      set_.bucket, units}) {
      hash = mix(hash * 31 + uint32_t(x) + 1);
    }
    channel_.begin(hash, std::string(name_of(set_.algorithm)) + " of " + std::to_string(size) + " coordinates");
  }

  // The reduction of dense vectors, as a part of an exchange that has begun. Large ones go around a ring.
  Result<T> reduce_dense(const Vec<T>& own, const Meta& meta) {
    const bool large = own.size * int64_t(sizeof(T)) > workers_ * kBulkBytes;
    return large ? ring(own, meta) : split(own, meta);
  }

  // The same in one round, for small ones: see all_gather below.
  Result<T> gather_dense(const Vec<T>& own, const Meta& meta) { return all_gather(own, meta); }

  // What holds for vectors of other workers beyond their form: `check` throws BadParcel where it does not.
  void set_check(std::function<void(const Vec<T>&)> check) { check_ = std::move(check); }

 private:

  int64_t delta(int64_t size) const { return int64_t(set_.delta * double(size)); }

  Result<T> alone(const Vec<T>& own, const Meta& meta) {
    Result<T> result;
    result.meta = meta;
    result.pieces.push_back(combine<O, T>({&own}, delta(own.size)));
    result.meta.present = uint64_t(present<O>(result.pieces[0]));
    return result;
  }

  // Sends to some workers and receives at most `most` bytes from each of others.
  std::vector<Incoming> trade(const std::vector<Outgoing>& out, const std::vector<int>& from, int64_t most) {
    std::vector<Incoming> in;
    for (int peer : from) in.push_back({peer, most});
    channel_.exchange(out, &in);
    return in;
  }

  // Runs a reader of what a worker has sent; if it does not believe it, the exchange ends with the worker's name.
  template <typename Read>
  auto believe(const Incoming& in, const Read& read) {
    try {
      return read(in.frame.begin(), in.frame.size);
    } catch (const BadParcel& bad) {
      channel_.fail(in.peer, std::string("sent a frame that cannot be read: ") + bad.what());
    }
  }

  void check(const Vec<T>& theirs) const {
    if (check_) check_(theirs);
  }

  // A parcel of the coordinates [begin, begin + size); its numbers are added to `meta`.
  Vec<T> open(const Incoming& in, int64_t begin, int64_t size, Meta* meta, const Quantization& quantization = {}) {
    Meta theirs;
    Vec<T> out = believe(in, [&](const uint8_t* bytes, int64_t length) {
      Vec<T> read = read_parcel<T>(bytes, length, {begin, size, workers_, quantization}, &theirs);
      check(read);
      return read;
    });
    meta->add(theirs);
    return out;
  }

  // Everybody's parcel to everybody: (P - 1) times the parcel, which for disjoint indices no algorithm can
  // beat. The paper doubles recursively, which saves messages and costs rounds.
  Result<T> all_gather(const Vec<T>& own, const Meta& meta) {
    Parcel<T> mine = wrap(own, set_.index_codec, meta);
    std::vector<Incoming> in = channel_.gather(mine.pieces(), set_.bulk, most_bytes<T>(own.size));
    Result<T> result;
    result.meta = meta;
    uint64_t sent = uint64_t(mine.bytes());
    std::vector<Vec<T>> all;
    for (const Incoming& i : in) {
      sent += uint64_t(i.frame.size + kFrameBytes);
      all.push_back(open(i, own.begin, own.size, &result.meta));
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
    const int64_t most = most_bytes<T>(own.size);
    int two = 1;
    while (2 * two <= workers_) two *= 2;
    const int extra = workers_ - two;
    Vec<T> sum = slice(own, own.begin, own.size);
    Meta all = meta;
    if (rank_ >= two) {
      Parcel<T> mine = wrap(own, set_.index_codec, meta);
      trade({{rank_ - two, mine.pieces()}}, {}, 0);
    } else {
      if (rank_ < extra) absorb(trade({}, {rank_ + two}, most)[0], 1, &sum, &all);
      for (int distance = 1; distance < two; distance *= 2) {
        Parcel<T> mine = wrap(sum, set_.index_codec, all);
        const int partner = rank_ ^ distance;
        std::vector<Incoming> in = trade({{partner, mine.pieces()}}, {partner}, most);
        all.sent += uint64_t(distance * mine.bytes());  // as many pairs send the same at this distance
        absorb(in[0], uint64_t(distance), &sum, &all);
      }
    }
    return hand_out(std::move(sum), all, two, extra);
  }

  // Takes a partner's parcel in, the lower worker's vector first.
  void absorb(const Incoming& in, uint64_t copies, Vec<T>* sum, Meta* meta) {
    Vec<T> theirs = open(in, sum->begin, sum->size, meta);
    std::vector<const Vec<T>*> parts = {sum, &theirs};
    if (in.peer < rank_) std::swap(parts[0], parts[1]);
    *sum = combine<O, T>(parts, delta(sum->size));
    meta->sent += copies * uint64_t(in.frame.size + kFrameBytes);
  }

  Result<T> hand_out(Vec<T> sum, Meta all, int two, int extra) {
    Result<T> result;
    if (rank_ >= two) {
      std::vector<Incoming> in = trade({}, {rank_ - two}, most_bytes<T>(sum.size));
      all = {};
      sum = open(in[0], sum.begin, sum.size, &all);
    } else if (rank_ < extra) {
      Parcel<T> mine = wrap(sum, set_.index_codec, all);
      mine.head.meta.sent = all.sent += uint64_t(extra) * uint64_t(mine.bytes());
      trade({{rank_ + two, mine.pieces()}}, {}, 0);
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
    std::vector<Incoming> in = channel_.exchange_all(
        [&](int peer) { return parcels[size_t(peer)].pieces(); }, most_bytes<T>(mine_size));
    Result<T> result;
    result.meta = meta;
    std::vector<Vec<T>> received;
    for (const Incoming& i : in) received.push_back(open(i, mine_begin, mine_size, &result.meta));
    std::vector<const Vec<T>*> parts;
    for (const Vec<T>& v : received) parts.push_back(&v);
    parts.insert(parts.begin() + rank_, &shares[size_t(rank_)]);
    const bool force = dense_sums();
    Vec<T> reduced = combine<O, T>(parts, force ? -1 : delta(mine_size));
    // Everybody knows now how much there is: an upper bound of a share of the result decides how it travels.
    const int64_t most = force ? total : std::min(total, int64_t(result.meta.entries));
    const bool bulk = most * int64_t(sizeof(T)) > workers_ * kBulkBytes;
    return show(std::move(reduced), sent, std::move(result), total, bulk);
  }

  // Whether the owner's sum of a share is dense, however few entries there are.
  bool dense_sums() const {
    const Algorithm a = set_.algorithm;
    return a == Algorithm::kDsar || a == Algorithm::kDense || a == Algorithm::kUnion;
  }

  // A large dense allreduce. Shares collect summands around the ring: the share of worker w begins at w + 1 and
  // ends, complete, at w. Then the sums go around.
  Result<T> ring(const Vec<T>& own, const Meta& meta) {
    const int next = (rank_ + 1) % workers_, before = (rank_ + workers_ - 1) % workers_;
    Meta sent = meta;
    Vec<T> sum = share(own, before);
    for (int i = 1; i < workers_; ++i) {
      const int64_t bytes = sum.size * int64_t(sizeof(T));
      Vec<T> mine = share(own, (rank_ + 2 * workers_ - i - 1) % workers_);
      std::vector<Incoming> in =
          trade({{next, {{sum.value, bytes}}}}, {before}, mine.size * int64_t(sizeof(T)));
      sent.sent += uint64_t(bytes + kFrameBytes);
      Vec<T> added;
      added.begin = mine.begin;
      added.size = mine.size;
      believe(in[0], [&](const uint8_t* values, int64_t length) {
        added.own_dense(read_values<T>(values, length, mine.size));
        check(added);
      });
      apply_to<O>(added.own_value.begin(), mine);
      sum = std::move(added);
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
    const Quantization by = quantization();
    if constexpr (std::is_same_v<T, float>) {
      if (by.bits) mine = wrap_quantized(&reduced, by, sent);
    }
    if (!mine.words.size) mine = wrap(reduced, set_.index_codec, sent);
    const int64_t largest = begin_of(1, total);  // the first share
    std::vector<Incoming> in = channel_.gather(mine.pieces(), bulk, most_bytes<T>(largest));
    uint64_t frames = uint64_t(mine.bytes());
    result.meta.add(sent);
    for (int w = 0, i = 0; w < workers_; ++w) {
      if (w == rank_) {
        result.pieces.push_back(std::move(reduced));
        continue;
      }
      const Incoming& one = in[size_t(i++)];
      frames += uint64_t(one.frame.size + kFrameBytes);
      const int64_t begin = begin_of(w, total), size = begin_of(w + 1, total) - begin;
      result.pieces.push_back(open(one, begin, size, &result.meta, by));
    }
    result.meta.sent += frames * uint64_t(workers_ - 1);
    return result;
  }

  // How the second half travels. Only DSAR quantizes, and only floats.
  Quantization quantization() const {
    if (!std::is_same_v<T, float> || set_.algorithm != Algorithm::kDsar) return {};
    return {set_.bits, set_.bucket, set_.seed};
  }

  Channel& channel_;
  Settings set_;
  int rank_, workers_;
  std::function<void(const Vec<T>&)> check_;
};

}  // namespace dct
