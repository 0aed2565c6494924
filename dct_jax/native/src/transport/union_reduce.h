// The union first, then a plain sum: beyond SparCML's algorithms, and the choice among all of them.
#pragma once

#include "transport/allreduce.h"
#include "transport/units.h"

namespace dct {

// One reduction in two exchanges. Workers OR bitmaps of their units, and so know the union, in which the rank of a
// coordinate is a perfect hash; then the union's values are reduced as dense vectors. Every coordinate of the union is
// in the result, those with a neutral value included.
template <typename T, typename O>
class UnionReducer {
 public:
  UnionReducer(Channel& channel, const Settings& settings, const Units& units)
      : channel_(channel), set_(plain(settings)), units_(units) {}

  // As Reducer::run.
  Result<T> run(const Vec<T>& own, const Meta& meta) {
    Reducer<T, O> values(channel_, set_);
    if (channel_.size() == 1) return values.run(own, meta);
    values.begin(own.size, units_.count());
    Result<T> result;
    Block<uint32_t> coordinates = units_.coordinates_of(unite(units_.bitmap_of(own), meta, &result.meta));
    const int64_t count = coordinates.size;
    Block<T> reduced(count);
    if (count) {
      Vec<T> mine;
      mine.size = count;
      mine.own_dense(values_at<O>(own, coordinates));
      Result<T> total = values.reduce_dense(mine, {});
      fill_range(total, 0, count, reduced.begin(), O::neutral());
      result.meta.add(total.meta);
    }
    result.meta.present = uint64_t(count);
    Vec<T> sparse;
    sparse.size = own.size;
    sparse.own(std::move(coordinates), std::move(reduced), count);
    result.pieces.push_back(std::move(sparse));
    return result;
  }

 private:
  // Values go as they are, whatever the settings say of sparse or quantized ones.
  static Settings plain(Settings settings) {
    settings.delta = 1;
    settings.bits = 0;
    settings.bulk = false;
    return settings;
  }

  // The OR of all workers' bitmaps. `total` gets the sum of their accounts.
  Bitmap unite(Bitmap own, const Meta& meta, Meta* total) {
    Vec<uint32_t> mine;
    mine.size = own.size;
    mine.dense = true;
    mine.count = own.size;
    mine.value = own.begin();
    Reducer<uint32_t, Operation<uint32_t, Op::kOr>> either(channel_, set_);
    either.set_check([&](const Vec<uint32_t>& piece) { check_bitmap(piece, units_.count()); });
    const bool small = 4 * own.size * channel_.size() <= kOneRoundBytes;
    Result<uint32_t> result = small ? either.gather_dense(mine, meta) : either.reduce_dense(mine, meta);
    Bitmap all(own.size);
    fill_range(result, 0, own.size, all.begin(), 0u);
    for (size_t w = 0; w < result.pieces.size(); ++w) {  // one for each worker, or one that we have made
      if (has_all(all, own, result.pieces[w].begin, result.pieces[w].size)) continue;
      channel_.fail(int(w), "sent a frame that cannot be read: its bitmap lacks units that it was told of");
    }
    *total = result.meta;
    return all;
  }

  Channel& channel_;
  Settings set_;
  const Units& units_;
};

// The reduction of all workers' vectors by the algorithm that was asked for; see Reducer::run. A worker has all
// coordinates of a unit or none.
template <typename T, typename O>
Result<T> reduce_vectors(Channel& channel, const Settings& settings, const Vec<T>& own, const Meta& meta,
                         const Units& units) {
  if (settings.algorithm == Algorithm::kUnion) return UnionReducer<T, O>(channel, settings, units).run(own, meta);
  return Reducer<T, O>(channel, settings).run(own, meta);
}

}  // namespace dct
