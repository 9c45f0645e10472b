#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/rpc/agent/agent_flight.h"
#include "gradwire/rpc/agent/agent_metrics.h"
#include "gradwire/rpc/agent/membership_driver.h"
#include "gradwire/rpc/agent/shared_end.h"
#include "gradwire/rpc/agent/transports.h"
#include "gradwire/rpc/barrier/barriers.h"
#include "gradwire/rpc/callee/server.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/inspect/inspector.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/runtime/runtime.h"
#include "gradwire/store/measured/measured_store.h"

namespace gradwire::rpc {

// Owns the parts of an agent: starts them, passes what Peers reports to them, and stops them. Thread-safe.
class AgentImpl : public Peers::Sink {
 public:
  AgentImpl(ReferenceHost& agent, RpcBackendOptions options);
  ~AgentImpl() override;

  // Starts all parts and joins the group. If it fails, everything that was started has been stopped again.
  absl::Status start(const std::string& name, int rank, int world_size);
  absl::Status shut_down(bool graceful, absl::Duration timeout);
  // Runs a step of the agent's end, which owns the agent, on a thread of its own. If the system has no
  // threads left, it returns that error and tries again until there is one, or until the agent's timers have
  // ended.
  absl::StatusOr<std::thread> start_end(std::shared_ptr<absl::AnyInvocable<void()>> step);
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
  std::unique_ptr<MembershipDriver> membership;
  std::unique_ptr<AgentMetrics> metrics;
  // Reads the parts above, so it is destroyed before them.
  std::unique_ptr<AgentFlight> flight;

 private:
  void keep_handed_over(const proto::Payload& payload, const Worker& from,
                        std::vector<transport::Buffer>& buffers) const;
  // Connects to every member (connect_at_init).
  absl::Status connect_to_all();
  // Stops all parts, once. Returns when that is done, by this thread or by another. The error names the
  // handlers that are still running.
  absl::Status stop(const absl::Status& reason, absl::Duration flush);
  // Joins all threads. Returns an error if that lasts longer than handler_timeout: DeadlineExceeded if
  // handlers are still running, ResourceExhausted if the system has no thread left that joins them.
  absl::Status end_threads();
  void join_threads();

  ReferenceHost& agent_;
  const TransportParts transport_parts_ = {std::make_shared<transport::ShmCounters>(),
                                           std::make_shared<transport::BufferPool>()};
  // The calls to the store, without metrics none.
  const std::shared_ptr<store::StoreTimes> store_times_ = std::make_shared<store::StoreTimes>();
  // Owned by the extensions. Set by start().
  Barriers* barriers_ = nullptr;
  SharedEnd ended_gracefully_;
  SharedEnd stopped_;
};

}  // namespace gradwire::rpc
