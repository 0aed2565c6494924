// Handlers of XLA's foreign function interface. A handler stands beside its kernel: a function, and below it
//
//   DCT_HANDLER(pack, Pack, "segment", "feedback", "value_codec");
//
// with the name that Python calls it by and the names of its attributes, in the order of the function's parameters. All
// else is read off the function's type, so that a signature is written once. module.cc lists the handlers' names.
#pragma once

#include <array>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace dct {

namespace ffi = xla::ffi;

// What XLA puts into a parameter of type P, if not an attribute.
template <typename P>
constexpr bool is_context = std::is_same_v<P, ffi::ThreadPool>;
template <typename P>
constexpr bool is_argument = !std::is_void_v<typename ffi::ArgBinding<P>::Arg>;
template <typename P>
constexpr bool is_result = !std::is_void_v<typename ffi::RetBinding<P>::Ret>;
template <typename P>
constexpr bool is_rest = std::is_same_v<P, ffi::RemainingArgs> || std::is_same_v<P, ffi::RemainingRets>;
template <typename P>
constexpr bool is_attribute = !(is_context<P> || is_argument<P> || is_result<P> || is_rest<P>);

// Binds the parameters P and Rest, which follow those that are `bound` already, and then the function. `names` are
// those of the attributes among P and Rest.
template <typename Function, typename Binding>
auto bind_parameters(Function function, Binding&& bound, const char* const*) {
  return std::move(bound).To(function);
}

template <typename P, typename... Rest, typename Function, typename Binding>
auto bind_parameters(Function function, Binding&& bound, const char* const* names) {
  auto next = [&](auto&& binding) {
    return bind_parameters<Rest...>(function, std::move(binding), names + is_attribute<P>);
  };
  if constexpr (is_context<P>) {
    return next(std::move(bound).template Ctx<P>());
  } else if constexpr (std::is_same_v<P, ffi::RemainingArgs>) {
    return next(std::move(bound).RemainingArgs());
  } else if constexpr (std::is_same_v<P, ffi::RemainingRets>) {
    return next(std::move(bound).RemainingRets());
  } else if constexpr (is_argument<P>) {
    return next(std::move(bound).template Arg<typename ffi::ArgBinding<P>::Arg>());
  } else if constexpr (is_result<P>) {
    return next(std::move(bound).template Ret<typename ffi::RetBinding<P>::Ret>());
  } else {
    return next(std::move(bound).template Attr<P>(*names));
  }
}

// The handler that calls a function whose attributes have these names. There must be as many of both.
template <typename... Params, typename... Names>
auto make_handler(ffi::Error (*function)(Params...), Names... names) {
  static_assert((int(is_attribute<Params>) + ... + 0) == sizeof...(Names), "each attribute needs a name");
  const std::array<const char*, sizeof...(Names)> all{names...};
  return bind_parameters<Params...>(function, ffi::Ffi::Bind(), all.data());
}

}  // namespace dct

// Symbols of handlers. They are hidden outside of the library, but in C they share one namespace with everything.
#define DCT_HANDLER_SYMBOL(name) dct_jax_##name

#define DCT_HANDLER(name, function, ...)                                                      \
  extern "C" XLA_FFI_Error* DCT_HANDLER_SYMBOL(name)(XLA_FFI_CallFrame* frame) {              \
    static auto* handler = dct::make_handler(&function __VA_OPT__(, ) __VA_ARGS__).release(); \
    return handler->Call(frame);                                                              \
  }                                                                                           \
  static_assert(true)  // takes the semicolon
