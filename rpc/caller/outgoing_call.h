#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/codec/incoming_payload.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/destination.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/rref/lazy_references.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Agent;
struct Peer;

// A call that is being put together: fill request() (callee, signature, target) and encode each argument into
// request().mutable_arguments(), then hand it to Agent::send_call. Not thread-safe. The agent outlives it.
class OutgoingCall {
 public:
  // `callee` is for messages. An unknown destination shows in status().
  OutgoingCall(Agent& agent, const Destination& destination, std::string callee);
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

 private:
  friend class Agent;
  static const Worker& nobody() {
    static const Worker worker;
    return worker;
  }

  Agent& agent_;
  bool sent_ = false;
  EnvelopeBox envelope_;
  proto::Request& request_;
  std::shared_ptr<Peer> peer_;
  const Worker* to_ = &nobody();
  LazyReferences references_;
  Encoder encoder_;
  bool borrow_ = false;
  bool idempotent_ = false;
  std::string callee_;
  absl::Time started_;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Duration timeout_ = absl::InfiniteDuration();
  absl::Status status_;
};

}  // namespace gradwire::rpc
