#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gradwire/rpc/agent/membership.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/agent/transports.h"
#include "gradwire/rpc/barrier/barriers.h"
#include "gradwire/rpc/callee/server.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/flight/agent_flight.h"
#include "gradwire/rpc/inspect/inspector.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/metrics/agent_metrics.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/store/measured/store_times.h"

namespace gradwire::rpc {

// Owns the parts of an agent: starts them, passes what Peers reports to them, and stops them. Thread-safe.
class AgentImpl : public Peers::Sink {
 public:
  AgentImpl(ReferenceHost& agent, RpcBackendOptions options);
  ~AgentImpl() override;

  // Starts all parts and joins the group. If it fails, everything that was started has been stopped again.
  absl::Status start(const std::string& name, int rank, int world_size);
  absl::Status shut_down(bool graceful, absl::Duration timeout);
  // As the functions of Agent.
  AgentStatistics statistics() const;
  AgentTables tables() const;
  // As Agent::barrier(), until `deadline`.
  absl::Status wait_at_barrier(const std::vector<std::string>& names, absl::Time deadline);

  // Peers::Sink
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers) override;
  void on_response(const Worker& from, EnvelopePtr envelope, std::vector<transport::Buffer> buffers) override;
  std::string callee_of(const Worker& peer, uint64_t call_id) override;
  void on_cancel(const Worker& from, uint64_t link, uint64_t call_id) override;
  void on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) override;
  void on_link_restored(const Worker& peer) override;
  void on_settled(const Worker& peer) override;
  void on_worker_state(const Worker& peer, WorkerState state) override;
  void on_unresponsive(const Worker& peer, const absl::Status& reason) override;
  void on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) override;

  // Set by start().
  AgentRuntime runtime;
  // Answers observers. `peers` uses it, so it is destroyed later.
  std::unique_ptr<Inspector> inspector;
  std::unique_ptr<Peers> peers;
  std::shared_ptr<RRefService> rrefs;
  std::unique_ptr<Caller> caller;
  std::unique_ptr<Server> server;
  std::unique_ptr<Membership> membership;
  std::unique_ptr<AgentMetrics> metrics;
  // Reads the parts above, so it is destroyed before them.
  std::unique_ptr<AgentFlight> flight;

 private:
  void keep_handed_over(const proto::Payload& payload, const Worker& from,
                        std::vector<transport::Buffer>& buffers) const;
  // Connects to every member (connect_at_init).
  absl::Status connect_to_all();
  // Stops all parts, once. Returns when that is done, by this thread or by another. Only the thread that does
  // it gets an error, which names the handlers that are still running.
  absl::Status stop(const absl::Status& reason, absl::Duration flush);
  // Joins all threads. Returns DeadlineExceeded if handlers are still running after handler_timeout.
  absl::Status end_threads();
  void join_threads();

  ReferenceHost& agent_;
  const TransportParts transport_parts_ = {std::make_shared<transport::ShmCounters>(),
                                           std::make_shared<transport::BufferPool>()};
  // The calls to the store, without metrics none.
  const std::shared_ptr<store::StoreTimes> store_times_ = std::make_shared<store::StoreTimes>();
  // Owned by the extensions. Set by start().
  Barriers* barriers_ = nullptr;
  std::once_flag ended_gracefully_;
  std::once_flag stopped_;
};

}  // namespace gradwire::rpc
