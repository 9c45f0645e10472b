#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "proto/rpc.pb.h"
#include "rpc/codec.h"
#include "rpc/destination.h"
#include "rpc/encoder.h"
#include "rpc/incoming_payload.h"
#include "rpc/worker.h"

namespace gradwire::rpc {

class Agent;

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
  // REQUIRES: status() was OK after construction.
  const Worker& to() const { return to_; }
  proto::Request& request() { return *envelope_->mutable_request(); }
  Encoder& encoder() { return *encoder_; }

  // Encodes one more positional argument; an error shows in status().
  template <class T, class V>
  void add_argument(V&& value) {
    if (status_.ok()) {
      set_status(
          Codec<T>::encode(std::forward<V>(value), *encoder_, *request().mutable_arguments()->add_values()));
    }
  }

  // The caller waits for the answer and changes no tensor meanwhile: large ones are sent from their own
  // memory. When the wait ends early, Agent::capture_call must come before the caller's tensors are his own
  // again.
  void borrow_tensors() { sharing_ = TensorSharing::kBorrow; }

 private:
  friend class Agent;

  Agent& agent_;
  bool sent_ = false;
  std::unique_ptr<proto::Envelope> envelope_;
  std::unique_ptr<Encoder> encoder_;
  std::unique_ptr<Encoder::References> references_;
  TensorSharing sharing_ = TensorSharing::kCapture;
  Worker to_;
  const std::string callee_;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Duration timeout_ = absl::InfiniteDuration();
  absl::Status status_;
};

}  // namespace gradwire::rpc
