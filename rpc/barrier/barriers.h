#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/barrier/barrier_table.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

// The barriers of one agent (rpc::rpc_barrier). The member with the lowest id leads a barrier: all members
// send it an Arrive, itself included, which it answers when all have come. Its decisions are in BarrierTable.
// Thread-safe. The agent owns it; `host` must outlive it.
class Barriers final : public AgentExtension {
 public:
  explicit Barriers(ReferenceHost& host) : host_(host) {}

  // Waits until all members, this worker among them, have come. Errors: as rpc::rpc_barrier.
  absl::Status wait(std::vector<Worker> members, absl::Time deadline);

  // AgentExtension
  absl::string_view name() const override { return "barrier"; }
  bool serves(uint32_t service) const override;
  void serve(ServiceCall call) override;
  void worker_lost(const Worker& worker, const absl::Status& reason) override;
  bool idle() const override;
  void shutdown(const absl::Status& reason) override;

 private:
  using Reply = std::function<void(absl::StatusOr<ServiceReply>)>;
  using Replies = std::vector<std::pair<Reply, absl::Status>>;

  // Removes the replies to these tickets, and their timers. Pass the result to run(), without the lock.
  Replies take_locked(BarrierTable::Answers answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void run(Replies replies);
  // Makes sure that the end of the members is noticed. `from` has a connection.
  void watch(const std::vector<Worker>& members, const Worker& from);
  // A member waits no longer.
  void expire(uint64_t ticket, const Worker& from, absl::Duration waited);
  std::string names(const BarrierTable::Members& members) const;

  ReferenceHost& host_;

  mutable Mutex mutex_;
  BarrierTable table_ ABSL_GUARDED_BY(mutex_);
  // A member that waits: its ticket is the key. `timer` ends the wait; 0: no timer.
  struct Waiting {
    Reply reply;
    uint64_t timer = 0;
  };
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  // Number of barriers of these members to which this worker has come.
  std::map<BarrierTable::Members, uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);
  // The incarnations of the workers that have had a connection to this one, or have been asked for one.
  std::set<uint64_t> watched_ ABSL_GUARDED_BY(mutex_);
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
