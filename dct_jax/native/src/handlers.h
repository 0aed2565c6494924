// The handlers that module.cc shows to JAX.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace dct {

namespace ffi = xla::ffi;

ffi::Error Pack(ffi::ThreadPool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::F32> tau,
                ffi::Buffer<ffi::U32> ties, ffi::RemainingArgs, ffi::ResultBuffer<ffi::U32> index,
                ffi::ResultBuffer<ffi::F32> value, ffi::ResultBuffer<ffi::U32> counts,
                ffi::RemainingRets, int64_t segment, bool feedback, int64_t value_codec);

ffi::Error Threshold(ffi::ThreadPool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::F32> old_tau,
                     ffi::Buffer<ffi::U32> rank, ffi::RemainingArgs,
                     ffi::ResultBuffer<ffi::F32> tau, ffi::ResultBuffer<ffi::U32> ties,
                     int64_t segment, bool feedback);

ffi::Error AllFinite(ffi::ThreadPool, ffi::RemainingArgs, ffi::ResultBuffer<ffi::U32> finite);

ffi::Error StopIf(ffi::Buffer<ffi::U32> counts, ffi::ResultBuffer<ffi::U32> corrupt, bool stop_nonfinite);

ffi::Error Encode(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> index,
                  ffi::Buffer<ffi::F32> value, ffi::Buffer<ffi::U32> dense,
                  ffi::ResultBuffer<ffi::U32> words, int64_t universe, int64_t unit,
                  int64_t index_codec, int64_t value_codec);

ffi::Error UnpackSum(ffi::ThreadPool, ffi::Buffer<ffi::U32> words, ffi::ResultBuffer<ffi::U32> ok,
                     ffi::RemainingRets, int64_t dense_layers, int64_t unit, int64_t value_codec);

ffi::Error Settle(ffi::ThreadPool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> words,
                  ffi::RemainingArgs, ffi::RemainingRets, int64_t dense_layers, int64_t unit,
                  int64_t value_codec);

ffi::Error GatherMessages(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> message,
                          ffi::ResultBuffer<ffi::U32> out, int64_t number);

ffi::Error ScatterMessages(ffi::Buffer<ffi::U32> messages, ffi::ResultBuffer<ffi::U32> out, int64_t number);

ffi::Error ReduceMessages(ffi::ThreadPool, ffi::Buffer<ffi::U32> control,
                          ffi::Buffer<ffi::U32> message, ffi::RemainingArgs,
                          ffi::ResultBuffer<ffi::U32> info, ffi::RemainingRets, int64_t number,
                          int64_t dense_layers, int64_t unit, int64_t value_codec,
                          int64_t index_codec, double delta, int64_t bits, int64_t bucket);
ffi::Error ReduceMessagesStart(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> message,
                               ffi::RemainingArgs, ffi::ResultBuffer<ffi::U32> token,
                               int64_t number, ffi::Span<const int64_t> sizes, int64_t dense_layers,
                               int64_t unit, int64_t value_codec, int64_t index_codec, double delta,
                               int64_t bits, int64_t bucket);
ffi::Error ReduceStream(ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> index,
                        ffi::AnyBuffer value, ffi::ResultBuffer<ffi::U32> info, ffi::RemainingRets,
                        int64_t number, int64_t size, int64_t op, int64_t index_codec, double delta,
                        int64_t bits, int64_t bucket);

ffi::Error QsgdEncode(ffi::ThreadPool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> dense,
                      ffi::RemainingArgs, ffi::ResultBuffer<ffi::U32> words, ffi::RemainingRets,
                      int64_t bits, int64_t bucket, bool feedback);

ffi::Error QsgdSum(ffi::ThreadPool, ffi::Buffer<ffi::U32> words, ffi::ResultBuffer<ffi::U32> ok,
                   ffi::RemainingRets, int64_t dense_layers, int64_t bits, int64_t bucket);

ffi::Error ThreeLcEncode(ffi::ThreadPool, ffi::Buffer<ffi::U32> control, ffi::Buffer<ffi::U32> dense,
                         ffi::RemainingArgs, ffi::ResultBuffer<ffi::U32> words, ffi::RemainingRets,
                         float multiplier, bool zero_runs, bool feedback);

ffi::Error ThreeLcSum(ffi::ThreadPool, ffi::Buffer<ffi::U32> words, ffi::ResultBuffer<ffi::U32> ok,
                      ffi::RemainingRets, int64_t dense_layers);

}  // namespace dct
