#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/destination.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Caller;

// The request of a call that is being put together, on the stack of the thread that calls: fill request()
// (callee, signature, target), encode each argument, then send(). Not thread-safe. The
// agent outlives it.
class OutgoingCall {
 public:
  // Takes the answer: called once, on a thread of the transport or a timer, or inside send().
  using Completion = absl::AnyInvocable<void(absl::StatusOr<IncomingPayload>)>;

  // `callee` is for messages. An unknown destination shows in status().
  OutgoingCall(Caller& caller, const Destination& destination, std::string callee);
  // Takes back the references of a call that was never sent.
  ~OutgoingCall();
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;

  const absl::Status& status() const { return status_; }
  void set_status(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Nobody when the destination is unknown.
  const Worker& to() const { return *to_; }
  proto::Request& request() { return request_; }
  Encoder& encoder() { return encoder_; }

  // Encodes one more positional argument; an error shows in status().
  template <class T, class V>
  void add_argument(V&& value) {
    require_codec<T>();
    if (status_.ok()) {
      set_status(
          Codec<T>::encode(std::forward<V>(value), encoder_, *request().mutable_arguments()->add_values()));
    }
  }

  // The caller waits for the answer and changes no tensor meanwhile: large ones are sent from their own
  // memory.
  void borrow_tensors() { borrow_ = true; }

  // The call may be made again when its connection breaks.
  void set_idempotent() { idempotent_ = true; }

  // Sends the call, once; returns its id. An error of status() goes to `done` too.
  uint64_t send(Completion done);

 private:
  // The envelope, its references and the state that outlives this object. Programs that call need not see the
  // headers of these.
  struct Parts;

  // Whether the same request may be sent a second time.
  bool is_repeatable() const;

  Caller& caller_;
  const std::unique_ptr<Parts> parts_;
  const Worker* to_;
  proto::Request& request_;
  Encoder encoder_;
  bool sent_ = false;
  bool borrow_ = false;
  bool idempotent_ = false;
  absl::Status status_;
};

}  // namespace gradwire::rpc
