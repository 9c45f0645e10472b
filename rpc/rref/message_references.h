#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gradwire/codec/encoder.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

class RRefService;

// The references of one message; most messages have none. The service and the receiver outlive it. Not
// thread-safe.
class MessageReferences : public Encoder::References {
 public:
  MessageReferences(RRefService& service, bool is_answer) : service_(service), is_answer_(is_answer) {}

  // REQUIRES: called before the first add().
  void set_receiver(const Worker& receiver) { receiver_ = &receiver; }

  absl::StatusOr<uint32_t> add(const std::shared_ptr<RRefHandle>& handle, proto::Payload& payload) override;

  // Returns the handles that were added. A call keeps them until its answer: a request that returns a
  // reference to its owner has no fork of its own, and relies on the sender's fork.
  std::vector<std::shared_ptr<RRefHandle>> take() { return std::move(handles_); }

 private:
  RRefService& service_;
  const bool is_answer_;
  const Worker* receiver_ = nullptr;
  std::vector<std::shared_ptr<RRefHandle>> handles_;
};

}  // namespace gradwire::rpc
