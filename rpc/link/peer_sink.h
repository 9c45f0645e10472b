#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;

// Hears of everything that Peers finds out, on the transport's threads or a timer's. Must not block.
class PeerSink {
 public:
  virtual ~PeerSink() = default;
  // `link` is where an answer goes.
  virtual void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                          std::vector<transport::Buffer> buffers) = 0;
  virtual void on_response(const Worker& from, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) = 0;
  virtual void on_cancel(const Worker& from, uint64_t link, uint64_t call_id) = 0;
  // Messages under way on the link are lost.
  virtual void on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) = 0;
  // There is a connection again after one had broken.
  virtual void on_link_restored(const Worker& peer) = 0;
  // Every message of this peer that require() named has been handled: ask settled(), which may be false
  // again.
  virtual void on_settled(const Worker& peer) = 0;
  // kAlive or kSuspect, when that changes.
  virtual void on_worker_state(const Worker& peer, WorkerState state) = 0;
  // Silent for longer than HeartbeatOptions::dead_after; again and again while that is so.
  virtual void on_unresponsive(const Worker& peer, const absl::Status& reason) = 0;
  // Once for each worker; kDead or kLeft.
  virtual void on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) = 0;
};

}  // namespace gradwire::rpc
