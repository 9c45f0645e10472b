#pragma once

#include <memory>
#include <string>
#include <typeinfo>

#include "absl/status/status.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/rpc.pb.h"

namespace gradwire::rpc {

class Agent;

// How values of one C++ type that live behind an RRef are handled where only their owner knows the type.
struct TypeOps {
  // The name in Reference.type.
  std::string (*name)();
  // Encodes the value for to_here; nullptr when the type cannot travel.
  absl::Status (*encode)(const void* value, Encoder& encoder, proto::Value& out);
  // Whether calls on the value run one at a time, in arrival order.
  bool (*serial)() = [] { return false; };
  // The C++ type itself: names come from other processes and cannot be trusted with a cast.
  const std::type_info& (*id)() = []() -> const std::type_info& { return typeid(void); };
};

// A request that is being served. The callee takes the arguments from `arguments`, and ends the call exactly
// once with one of the finish functions, on any thread; a call that is dropped without one fails with
// Internal. Everything here lives until then: keep the shared_ptr. Not thread-safe but for the finish
// functions.
class ServerCall {
 public:
  virtual ~ServerCall() = default;

  virtual Agent& agent() const = 0;
  // Where continuations of the handler run.
  virtual const std::shared_ptr<Executor>& executor() const = 0;
  // The callee's name, for messages.
  virtual const std::string& callee() const = 0;
  virtual const IncomingPayload& arguments() const = 0;
  // The object of a method, or the first argument of an operator called through an RRef: the owner's value
  // and its type. nullptr when the request has no target.
  virtual const std::shared_ptr<void>& target() const = 0;
  virtual const TypeOps* target_type() const = 0;

  // Ends the call with a value, which travels (type->encode) or, for a call made by remote(), stays here
  // behind an RRef. The caller has let go of the arguments and of other copies of the value: a tensor that
  // nobody else holds then travels without being copied.
  virtual void finish(std::shared_ptr<void> value, const TypeOps* type) = 0;
  virtual void fail(absl::Status status) = 0;
  // Drops the decoded tensors and references of the request; arguments() must not be used afterwards.
  virtual void release_arguments() = 0;
  // The call will be ended after the callee has returned, perhaps on another thread: keeps the calling
  // thread's ExecutionState for the encoding of the result. Before the callee runs.
  virtual void finish_later() = 0;
};

}  // namespace gradwire::rpc
