#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;

// Receives everything that Peers finds out, on threads of the transports and of the timers. Implementations
// must not block.
class PeerSink {
 public:
  virtual ~PeerSink() = default;
  // A request has arrived. The answer must be sent on `link`.
  virtual void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                          std::vector<transport::Buffer> buffers) = 0;
  virtual void on_response(const Worker& from, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) = 0;
  // Returns the callee of a call to the peer that is not answered, for the log; "" if it is not known.
  virtual std::string callee_of(const Worker& /*peer*/, uint64_t /*call_id*/) { return ""; }
  virtual void on_cancel(const Worker& from, uint64_t link, uint64_t call_id) = 0;
  // The link has ended. Messages in transit on it are lost.
  virtual void on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) = 0;
  // A connection is open again after one had broken.
  virtual void on_link_restored(const Worker& peer) = 0;
  // Every message of this peer that Settlement::require() named has been handled. Call settled() again, which
  // may be false by then.
  virtual void on_settled(const Worker& peer) = 0;
  // The state has changed to kAlive or kSuspect.
  virtual void on_worker_state(const Worker& peer, WorkerState state) = 0;
  // The peer has been silent for longer than HeartbeatOptions::dead_after. Called repeatedly while that
  // lasts.
  virtual void on_unresponsive(const Worker& peer, const absl::Status& reason) = 0;
  // The worker is lost: `state` is kDead or kLeft. Called once for each worker.
  virtual void on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) = 0;
};

}  // namespace gradwire::rpc
