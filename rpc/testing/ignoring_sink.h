#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/rpc/link/peers.h"

namespace gradwire::rpc::testing {

// Ignores everything that Peers finds out. A test derives from it and overrides what it needs.
class IgnoringSink : public Peers::Sink {
 public:
  void on_request(const Worker&, const std::shared_ptr<Link>&, EnvelopePtr,
                  std::vector<transport::Buffer>) override {}
  void on_response(const Worker&, EnvelopePtr, std::vector<transport::Buffer>) override {}
  void on_cancel(const Worker&, uint64_t, uint64_t) override {}
  void on_link_closed(const Worker&, const Link&, const absl::Status&) override {}
  void on_link_restored(const Worker&) override {}
  void on_settled(const Worker&) override {}
  void on_worker_state(const Worker&, WorkerState) override {}
  void on_unresponsive(const Worker&, const absl::Status&) override {}
  void on_worker_lost(const Worker&, WorkerState, const absl::Status&) override {}
};

}  // namespace gradwire::rpc::testing
