#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <typeinfo>

#include "absl/status/status.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/rpc.pb.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace gradwire::rpc {

class Agent;

// Records how long the calls of one callee take, separately for small, medium and large messages: a callee
// that is fast on a small tensor may be slow on a large one. Thread-safe.
class CalleeCost {
 public:
  // The cost of calls whose message has this size.
  TaskCost* of(std::size_t message_bytes) {
    constexpr std::size_t kSmall = std::size_t{4} << 10;
    constexpr std::size_t kMedium = std::size_t{256} << 10;
    return &costs_[message_bytes <= kSmall ? 0 : message_bytes <= kMedium ? 1 : 2];
  }

 private:
  std::array<TaskCost, 3> costs_;
};

// Operations on values of one C++ type behind an RRef, where only the owner knows the type.
struct TypeOps {
  // The type's name, as in Reference.type.
  std::string (*name)();
  // Encodes the value for to_here; nullptr if the type has no Codec.
  absl::Status (*encode)(const void* value, Encoder& encoder, proto::Value& out);
  // Whether calls on the value run one at a time, in arrival order.
  bool (*serial)() = [] { return false; };
  // The C++ type itself. A cast must not rely on the name, because names come from other processes.
  const std::type_info& (*id)() = []() -> const std::type_info& { return typeid(void); };
  // The value as its base class torch::nn::Module; nullptr if it is not a module.
  torch::nn::Module* (*module)(void* value) = [](void*) -> torch::nn::Module* { return nullptr; };
  // The name of the function whose stream the value is; nullptr if it is not a stream.
  std::string (*stream_of)(const void* value) = nullptr;
};

// A request that is being served. The callee takes the arguments from arguments(), and ends the call exactly
// once by finish() or fail(), on any thread. A call that is dropped without that fails with Internal.
// Everything that these methods return lives until then; hold the shared_ptr to the call. Not thread-safe,
// except for finish() and fail().
class ServerCall {
 public:
  virtual ~ServerCall() = default;

  virtual Agent& agent() const = 0;
  // Runs the continuations of the handler.
  virtual const std::shared_ptr<Executor>& executor() const = 0;
  // The callee's name, for messages.
  virtual const std::string& callee() const = 0;
  virtual const IncomingPayload& arguments() const = 0;
  // The object of a method, or the first argument of an operator that is called through an RRef: the owner's
  // value and its type. nullptr if the request has no target.
  virtual const std::shared_ptr<void>& target() const = 0;
  virtual const TypeOps* target_type() const = 0;

  // Ends the call with a value. The value is encoded and sent or, for a call made by remote(), stays at this
  // worker behind an RRef. Release the arguments and all other copies of the value before the call: a tensor
  // without other owners is sent without being copied. The value may be used after `fence`, or, without one,
  // on the current streams of the handler.
  virtual void finish(std::shared_ptr<void> value, const TypeOps* type, StreamFencePtr fence = nullptr) = 0;
  virtual void fail(absl::Status status) = 0;
  // Drops the decoded tensors and references of the request. arguments() must not be used afterwards.
  virtual void release_arguments() = 0;
  // Call before the callee runs, if the call may end after the callee has returned, perhaps on another
  // thread. Keeps the ExecutionState of the calling thread for the encoding of the result.
  virtual void finish_later() = 0;
};

}  // namespace gradwire::rpc
