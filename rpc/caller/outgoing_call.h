#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

class Caller;

// Builds the request of one call, on the stack of the calling thread: set the callee, signature and target in
// request(), add each argument, then send(). Not thread-safe. The agent must outlive it.
class OutgoingCall {
 public:
  // Receives the answer. Called once, on a thread of the transport, on a timer's thread, or inside send().
  using Completion = absl::AnyInvocable<void(absl::StatusOr<IncomingPayload>&&)>;

  // `callee` is used in messages. If the destination is unknown, status() is an error.
  OutgoingCall(Caller& caller, const Destination& destination, std::string callee);
  // Takes back the references of the arguments if the call was not sent.
  ~OutgoingCall();
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;

  const absl::Status& status() const { return status_; }
  void set_status(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // The callee's worker; an empty Worker if the destination is unknown.
  const Worker& to() const { return *to_; }
  proto::Request& request() { return request_; }
  Encoder& encoder() { return encoder_; }

  // Encodes the next positional argument. If that fails, status() is an error.
  template <class T, class V>
  void add_argument(V&& value) {
    require_codec<T>();
    if (status_.ok()) {
      set_status(
          Codec<T>::encode(std::forward<V>(value), encoder_, *request().mutable_arguments()->add_values()));
    }
  }

  // Declares that the caller changes no tensor until the answer arrives. Large tensors are then sent from
  // their own memory, without a copy.
  void borrow_tensors() { borrow_ = true; }

  // Declares that the call may be repeated if its connection breaks.
  void set_idempotent() { idempotent_ = true; }

  // Declares that the call fetches items of the stream of this function. Reports about waits name the
  // function.
  void set_stream_of(std::shared_ptr<const std::string> function);

  // Sends the call and returns its id. Call it at most once. If status() is an error, `done` receives it.
  uint64_t send(Completion done);

 private:
  // The envelope, its references, and the state that outlives this object. Defined in the source file, so
  // that programs need not include its headers.
  struct Impl;

  // Whether the same request may be sent more than once.
  bool is_repeatable() const;
  absl::Status encode(const TensorSet& tensors, const DeviceMap* map, TensorSharing sharing, bool repeatable,
                      EncodedTensors& encoded);

  Caller& caller_;
  const std::unique_ptr<Impl> impl_;
  const Worker* to_;
  proto::Request& request_;
  Encoder encoder_;
  bool sent_ = false;
  bool borrow_ = false;
  bool idempotent_ = false;
  absl::Status status_;
};

}  // namespace gradwire::rpc
