#pragma once

#include <memory>
#include <utility>

#include "gradwire/codec/encoder.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class RRefService;

// The references of one message, which most messages have none of: what keeps them is made with the first. The service
// and the receiver outlive it. Not thread-safe.
class LazyReferences : public Encoder::References {
 public:
  LazyReferences(RRefService& service, bool is_answer) : service_(service), is_answer_(is_answer) {}

  // Before the first add().
  void set_receiver(const Worker& receiver) { receiver_ = &receiver; }

  absl::StatusOr<uint32_t> add(const std::shared_ptr<RRefHandle>& handle, proto::Payload& payload) override;

  // What holds the references; nullptr when there is none.
  std::unique_ptr<Encoder::References> take() { return std::move(made_); }

 private:
  RRefService& service_;
  const bool is_answer_;
  const Worker* receiver_ = nullptr;
  std::unique_ptr<Encoder::References> made_;
};

}  // namespace gradwire::rpc
