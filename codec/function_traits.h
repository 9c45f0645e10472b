#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/codec/codec_containers.h"

namespace gradwire::rpc {

// The properties of a C++ function that the protocol needs: the class of the object that it is called on, the
// value types of its parameters, and the type of its result (T if it returns Future<T>).
template <class R, class C, class... P>
struct CallableTraits {
  using Returned = R;
  using Result = typename future_internal::Unwrap<std::decay_t<R>>::type;
  using Object = std::remove_cv_t<C>;  // void for free functions
  using Parameters = std::tuple<P...>;
  using Values = std::tuple<std::decay_t<P>...>;
  static constexpr std::size_t kArity = sizeof...(P);
  static constexpr bool kIsMethod = !std::is_void_v<C>;

  static std::string signature() {
    std::string text;
    if constexpr (std::is_void_v<Result>) {
      text = "void(";
    } else {
      text = absl::StrCat(codec_type_name<std::decay_t<Result>>(), "(");
    }
    std::string separator;
    ((absl::StrAppend(&text, separator, codec_type_name<std::decay_t<P>>()), separator = ","), ...);
    return text + ")";
  }
};

template <class F>
inline constexpr bool kNeverCallable = false;

template <class F>
struct FunctionTraits {
  static_assert(
      kNeverCallable<F>,
      "only functions, and methods without '&', '&&' or volatile, can be registered and called: got "
      "a data member, a variadic function, or a lambda; write a function that uses it");
};
template <class R, class... P>
struct FunctionTraits<R (*)(P...)> : CallableTraits<R, void, P...> {};
template <class R, class... P>
struct FunctionTraits<R (*)(P...) noexcept> : CallableTraits<R, void, P...> {};
template <class R, class C, class... P>
struct FunctionTraits<R (C::*)(P...)> : CallableTraits<R, C, P...> {};
template <class R, class C, class... P>
struct FunctionTraits<R (C::*)(P...) const> : CallableTraits<R, C, P...> {};
template <class R, class C, class... P>
struct FunctionTraits<R (C::*)(P...) noexcept> : CallableTraits<R, C, P...> {};
template <class R, class C, class... P>
struct FunctionTraits<R (C::*)(P...) const noexcept> : CallableTraits<R, C, P...> {};

// The type in which a result is sent: void becomes monostate.
template <class R>
using ValueOf = std::conditional_t<std::is_void_v<R>, std::monostate, std::decay_t<R>>;

}  // namespace gradwire::rpc
