#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/function_traits.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/registry/serve.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/registry/type_ops.h"
#include "gradwire/rpc/streams/stream_batch.h"
#include "gradwire/rpc/streams/stream_coroutine.h"
#include "gradwire/rpc/streams/stream_source.h"

// Registers and serves functions that return a Stream.
namespace gradwire::rpc {

template <class T>
class Stream;

namespace stream_internal {

template <class T>
inline constexpr bool kIsStream = false;
template <class T>
inline constexpr bool kIsStream<Stream<T>> = true;

// The TypeOps of the value behind the reference to a stream.
template <class T>
const TypeOps* stream_ops() {
  static const TypeOps ops = {
      .name = [] { return stream_type(codec_type_name<T>()); },
      .encode = nullptr,
      .id = []() -> const std::type_info& { return typeid(StreamOwner); },
      .stream_of =
          [](const void* value) { return static_cast<const StreamOwner*>(value)->source().callee(); },
  };
  return &ops;
}

template <class T>
const Callee* register_take() {
  const std::string item = codec_type_name<T>();
  Callee callee;
  callee.kind = CalleeKind::kMethod;
  callee.object_type = stream_type(item);
  callee.name = take_name(callee.object_type);
  callee.signature = take_signature(item);
  callee.serve = &serve_take;
  return Registry::instance().add(std::move(callee));
}
// The method "Stream[T].take". Every program that calls or serves a function with this result has it.
template <class T>
inline const Callee* const take_callee = register_take<T>();

}  // namespace stream_internal

// As for other functions, but the name of the result is "Stream[T]".
template <class T, class C, class... P>
struct CallableTraits<Stream<T>, C, P...> : CallableTraits<void, C, P...> {
  using Returned = Stream<T>;
  using Result = Stream<T>;
  static std::string signature() {
    const std::string parameters = CallableTraits<void, C, P...>::signature().substr(sizeof("void") - 1);
    return stream_internal::stream_type(codec_type_name<T>()) + parameters;
  }
};

// A stream is not a value that can be sent. This Codec exists for its messages.
template <class T>
struct Codec<Stream<T>> {
  static std::string type_name() {
    refuse<T>();
    return "";
  }
  static absl::Status encode(const Stream<T>&, Encoder&, proto::Value&) {
    refuse<T>();
    return absl::OkStatus();
  }
  static absl::StatusOr<Stream<T>> decode(const proto::Value&, Decoder&) {
    static_assert(
        stream_internal::kNever<T>,
        "the function returns a Stream: call it with rpc_stream<&function>(...), not with rpc_sync, "
        "rpc_async or remote");
    return absl::InternalError("not compiled");
  }

 private:
  template <class U>
  static void refuse() {
    static_assert(stream_internal::kNever<U>,
                  "a Stream cannot be an argument, or a part of another value: a registered function returns "
                  "it directly, and its caller reads it with rpc_stream<&function>(...)");
  }
};

namespace serve_internal {

// Runs a function that returns a stream and leaves the stream at this worker, for takes. Found instead of the
// general run_and_finish() because it is more constrained.
template <class Returned, class Values, class Run>
requires stream_internal::kIsStream<Returned>
void run_and_finish(const std::shared_ptr<Frame<Values>>& frame, Run run) {
  using T = typename Returned::value_type;
  const std::shared_ptr<ServerCall> call = frame->call;
  (void)stream_internal::take_callee<T>;
  try {
    if (call->arguments().payload->has_graph()) {
      throw Error(absl::FailedPreconditionError(
          "a stream cannot belong to an autograd context: call rpc_stream outside of the context"));
    }
    if (call->target_type() != nullptr && call->target_type()->serial()) {
      throw Error(absl::FailedPreconditionError(
          "a method of a serial class cannot return a stream, because the stream would run beside the next "
          "method: register the class with GRADWIRE_RPC_CLASS"));
    }
    Returned stream = run();
    std::shared_ptr<StreamSource> source = stream.release();
    if (source == nullptr) throw Error(absl::InternalError("the function returned an empty Stream"));
    // A coroutine refers to its reference parameters, and a method to its object, until it ends.
    frame->call = nullptr;
    auto kept = std::make_shared<std::pair<std::shared_ptr<Frame<Values>>, std::shared_ptr<void>>>(
        frame, call->target());
    call->release_arguments();
    source->returned(*call, std::move(kept));
    call->finish(std::make_shared<StreamOwner>(std::move(source)), stream_internal::stream_ops<T>());
  } catch (...) {
    call->fail(with_context(status_from_exception(std::current_exception()),
                            absl::StrCat("\"", call->callee(), "\"")));
  }
}

}  // namespace serve_internal
}  // namespace gradwire::rpc
