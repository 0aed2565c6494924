// One vector a worker, given by its entries, reduced over a channel.
#include "common/parallel.h"
#include "transport/tasks.h"
#include "transport/union_reduce.h"

namespace dct {
namespace {

// Indices come from the caller, and everything after this writes where they say.
template <typename T>
void check_entries(const Vec<T>& v, size_t indices, size_t values) {
  if (v.dense && values != size_t(v.size)) throw Failure("a dense vector has another size than it says");
  if (v.dense) return;
  if (size_t(v.count) > std::min(indices, values)) throw Failure("a stream has fewer entries than it says");
  for (int64_t i = 0; i < v.count; ++i) {
    if (v.index[i] >= v.size || (i && v.index[i] <= v.index[i - 1])) {
      throw Failure("a stream's indices are not strictly increasing and below its size");
    }
  }
}

// Calls body with the value type and the operation that were asked for at run time.
template <typename Body>
ffi::Error with_type(ffi::DataType dtype, Op op, const Body& body) {
  auto with_op = [&](auto type) {
    using T = typename decltype(type)::type;
    switch (op) {
      case Op::kSum: return body(type, Operation<T, Op::kSum>());
      case Op::kMax: return body(type, Operation<T, Op::kMax>());
      case Op::kMin: return body(type, Operation<T, Op::kMin>());
      case Op::kProduct: return body(type, Operation<T, Op::kProduct>());
      default: return body(type, Operation<T, Op::kOr>());
    }
  };
  if (dtype == ffi::F32) return with_op(std::type_identity<float>());
  if (dtype == ffi::F64) return with_op(std::type_identity<double>());
  if (dtype == ffi::U32) return with_op(std::type_identity<uint32_t>());
  return ffi::Error::InvalidArgument("values must be float32, float64 or uint32");
}

// control = (count, algorithm, seed, bulk). Results: info, then a dense array, or indices, values.
ffi::Error ReduceStream(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> index,
                        ffi::AnyBuffer value, ffi::ResultBuffer<ffi::U32> info,
                        ffi::RemainingRets rets, int64_t number, int64_t size, int64_t op,
                        int64_t index_codec, double delta, int64_t bits, int64_t bucket) {
  FlushDenormals mode;
  const uint32_t* c = control.typed_data();
  Settings settings{Algorithm(c[1]), uint32_t(index_codec), delta, int(bits), bucket, c[2], c[3] != 0};
  return guarded([&] {
    return with_type(value.element_type(), Op(op), [&](auto type, auto operation) {
      using T = typename decltype(type)::type;
      using O = decltype(operation);
      Vec<T> own;
      own.size = size;
      own.count = c[0];
      own.dense = index.element_count() == 0;  // no indices: everything
      if (own.dense) own.count = size;
      own.index = index.typed_data();
      own.value = static_cast<const T*>(value.untyped_data());
      std::shared_ptr<Channel> on = channel(number);
      Meta meta;
      meta.entries = uint64_t(own.count);
      Result<T> result = exchanging(*on, [&] {
        check_entries(own, index.element_count(), value.element_count());
        Units units;
        units.append(size, 1);
        return reduce_vectors<T, O>(*on, settings, own, meta, units);
      });
      uint32_t* out = info->typed_data();
      const uint64_t mean_sent = result.meta.sent / uint64_t(on->size());
      out[0] = uint32_t(result.meta.present);
      out[1] = uint32_t(std::min<uint64_t>(mean_sent, UINT32_MAX));
      if (rets.size() == 1) {
        auto dense = rets.get<ffi::AnyBuffer>(0);
        fill_range(result, 0, size, static_cast<T*>((*dense)->untyped_data()), O::neutral());
        return ffi::Error::Success();
      }
      auto indices = rets.get<ffi::Buffer<ffi::U32>>(0);
      auto values = rets.get<ffi::AnyBuffer>(1);
      const int64_t capacity = int64_t((*indices)->element_count());
      const int64_t written = write_stream<O>(result, capacity, (*indices)->typed_data(),
                                              static_cast<T*>((*values)->untyped_data()));
      if (written < 0) return ffi::Error::Internal("the reduced stream has more entries than its buffer");
      out[0] = uint32_t(written);
      // What follows means nothing, but is the same on all workers.
      std::fill((*indices)->typed_data() + written, (*indices)->typed_data() + capacity, UINT32_MAX);
      std::fill_n(static_cast<T*>((*values)->untyped_data()) + written, capacity - written, T(0));
      return ffi::Error::Success();
    });
  });
}

}  // namespace

DCT_HANDLER(reduce_stream, ReduceStream, "channel", "size", "op", "index_codec", "delta", "bits", "bucket");

}  // namespace dct
