#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/function_traits.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/registry/type_ops.h"

// Serves a request for a registered C++ callee: decode, run, finish. Each callee has its own instantiation.
namespace gradwire::rpc::serve_internal {

template <class Values>
absl::StatusOr<Values> decode_arguments(const ServerCall& call) try {
  constexpr std::size_t kArity = std::tuple_size_v<Values>;
  const IncomingPayload& in = call.arguments();
  if (static_cast<std::size_t>(in.payload->values_size()) != kArity || in.payload->keywords_size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", call.callee(), "\" takes ", kArity,
                                                   " arguments, got ", in.payload->values_size(), " and ",
                                                   in.payload->keywords_size(), " by keyword"));
  }
  Decoder decoder = in.decoder();
  return [&]<std::size_t... I>(std::index_sequence<I...>)->absl::StatusOr<Values> {
    absl::Status status;
    std::tuple<std::optional<std::tuple_element_t<I, Values>>...> parts;
    [[maybe_unused]] auto decode_one = [&]<std::size_t J>(std::integral_constant<std::size_t, J>) {
      auto value = decode_value<std::tuple_element_t<J, Values>>(in.payload->values(J), decoder);
      if (!value.ok()) {
        status =
            with_context(value.status(), absl::StrCat("argument ", J + 1, " of \"", call.callee(), "\""));
        return false;
      }
      std::get<J>(parts).emplace(*std::move(value));
      return true;
    };
    if (!(decode_one(std::integral_constant<std::size_t, I>()) && ...)) return status;
    return Values(*std::move(std::get<I>(parts))...);
  }
  (std::make_index_sequence<kArity>());
} catch (...) {
  // A Codec of the user has thrown.
  return caught(absl::StrCat("decoding the arguments of \"", call.callee(), "\""));
}

// Values that must live until the Future that a handler returned completes: a coroutine does not copy
// reference parameters.
template <class Values>
struct Frame {
  std::shared_ptr<ServerCall> call;
  std::optional<Values> arguments;
};

// Ends the call with a value. Releases the arguments first: if a handler returns an argument, `value` is then
// the only copy, and need not be copied to be sent.
template <class R, class Values>
void finish(Frame<Values>& frame, R value, StreamFencePtr fence = nullptr) {
  auto held = std::make_shared<R>(std::move(value));
  frame.arguments.reset();
  frame.call->release_arguments();
  frame.call->finish(std::move(held), type_ops<R>(), std::move(fence));
}

// Runs `step`, which runs code of users. An exception ends the call with an error.
template <class Values, class F>
void contain(Frame<Values>& frame, F&& step) {
  try {
    step();
  } catch (...) {
    frame.call->fail(caught_in(frame.call->callee()));
  }
}

// `run` calls the user's function with the frame's arguments. Its type is erased, so that all callees with
// these parameters and this result share the code.
template <class Returned, class Values>
void run_and_finish(const std::shared_ptr<Frame<Values>>& frame, absl::FunctionRef<Returned()> run) {
  contain(*frame, [&] {
    if constexpr (future_internal::kIsFuture<Returned>) {
      using T = typename Returned::value_type;
      frame->call->finish_later();
      Returned future = run();
      if (!future.valid()) {
        frame->call->fail(
            absl::InternalError(absl::StrCat("\"", frame->call->callee(), "\" returned an empty Future")));
        return;
      }
      // A cancelled call does not cancel the future, because the handler may share it. The handler learns of
      // the cancellation from its CallContext.
      auto state = future_internal::StateAccess::of(future);
      state->on_done_inline([frame, state]() mutable {
        // The future may complete on any thread, perhaps inside user code. So the value is read, encoded and
        // destroyed on the executor, and so are the arguments.
        const std::shared_ptr<Executor> executor = frame->call->executor();
        executor->post_or_run([frame = std::move(frame), state = std::move(state)] {
          contain(*frame, [&] {
            const typename Returned::Result& result = state->result();
            if (!future_internal::status_of(result).ok()) {
              frame->call->fail(future_internal::status_of(result));
            } else if constexpr (std::is_void_v<T>) {
              finish<std::monostate>(*frame, std::monostate(), state->fence());
            } else {
              finish<T>(*frame, *result, state->fence());
            }
          });
        });
      });
    } else if constexpr (std::is_void_v<Returned>) {
      run();
      finish<std::monostate>(*frame, std::monostate());
    } else {
      finish<std::decay_t<Returned>>(*frame, run());
    }
  });
}

// Passes a decoded value to a parameter declared as P: as an lvalue if P is an lvalue reference, else moved.
template <class P, class V>
decltype(auto) pass(V& value) {
  if constexpr (std::is_lvalue_reference_v<P>) {
    return static_cast<V&>(value);
  } else {
    return std::move(value);
  }
}

// `T`: the class of the object of a method, which may have inherited it.
template <auto F, class T = typename FunctionTraits<decltype(F)>::Object>
void serve(const std::shared_ptr<ServerCall>& call) {
  using Traits = FunctionTraits<decltype(F)>;
  using Values = typename Traits::Values;
  absl::StatusOr<Values> arguments = decode_arguments<Values>(*call);
  if (!arguments.ok()) {
    call->fail(arguments.status());
    return;
  }
  auto frame = std::make_shared<Frame<Values>>(Frame<Values>{call, *std::move(arguments)});
  run_and_finish<typename Traits::Returned>(frame, [&]() -> decltype(auto) {
    return [&]<std::size_t... I>(std::index_sequence<I...>)->decltype(auto) {
      using Parameters = typename Traits::Parameters;
      if constexpr (Traits::kIsMethod) {
        auto* object = static_cast<T*>(call->target().get());
        return (object->*F)(pass<std::tuple_element_t<I, Parameters>>(std::get<I>(*frame->arguments))...);
      } else {
        return F(pass<std::tuple_element_t<I, Parameters>>(std::get<I>(*frame->arguments))...);
      }
    }
    (std::make_index_sequence<Traits::kArity>());
  });
}

template <class T, class... A>
void construct(const std::shared_ptr<ServerCall>& call) {
  using Values = std::tuple<std::decay_t<A>...>;
  absl::StatusOr<Values> arguments = decode_arguments<Values>(*call);
  if (!arguments.ok()) {
    call->fail(arguments.status());
    return;
  }
  try {
    std::shared_ptr<T> object =
        std::apply([](auto&&... argument) { return std::make_shared<T>(std::move(argument)...); },
                   *std::move(arguments));
    call->release_arguments();
    call->finish(std::move(object), type_ops<T>());
  } catch (...) {
    call->fail(caught(absl::StrCat("constructing \"", call->callee(), "\"")));
  }
}

template <class... A>
std::string constructor_signature() {
  return CallableTraits<void, void, A...>::signature();
}

}  // namespace gradwire::rpc::serve_internal
