#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_port.h"

namespace gradwire::collectives::cpu {

// Actions that must wait until the lock has been released.
struct DeferredEffects {
  // kDeliver, kEndSend and kEndReceive effects, whose futures must be completed.
  Effects ended;
  // Ranks whose doorbells must be signalled: something was written for them, or their ring was full.
  absl::InlinedVector<int, 4> written;
  absl::InlinedVector<int, 4> full;
};

// An Endpoint together with its carrier: the rings to and from all other ranks of a host. Not thread-safe.
class ShmCarrier {
 public:
  ShmCarrier(const Endpoint::Options& options, const HostMemory& memory);

  // Layout of the memory: each member's two slots contain its Doorbell, followed by the rings that it writes.
  static std::size_t slot_bytes(int size);
  static char* ring_memory(const HostMemory& memory, int from, int to);
  static P2pRing ring(const HostMemory& memory, int from, int to);

  Endpoint& endpoint() { return endpoint_; }
  const Endpoint& endpoint() const { return endpoint_; }
  ShmPort& port(int rank) { return *ports_[static_cast<std::size_t>(rank)]; }

  // Performs the effects, and the effects that follow from them.
  void settle(Effects effects, DeferredEffects& deferred);
  // Reads and writes everything that is possible now. Returns whether there was anything.
  bool poll(DeferredEffects& deferred);
  // Whether the last poll() left records unread.
  bool has_more() const { return has_more_; }
  // Whether a message or an answer waits for room in a ring.
  bool waits_for_room() const { return partial_writes_ > 0 || endpoint_.sends().outboxes().size() > 0; }
  // Writes to the rank whatever now has room in its ring. Returns whether it wrote anything.
  bool flush(int rank, DeferredEffects& deferred);
  // Ends operations whose deadline has passed, and those that wait for ranks that are gone.
  void expire(absl::Time now, DeferredEffects& deferred);
  absl::Time next_deadline() const { return endpoint_.next_deadline(); }
  // Whether another rank waits for room in its ring to this rank.
  bool is_full() const;
  absl::InlinedVector<P2pRingReader::Probe, 8> probes();

 private:
  bool is_other(int rank) const { return rank != options_.rank && !endpoint_.matcher().is_lost(rank); }
  void perform(Effect& effect, Effects& more, DeferredEffects& deferred);
  void reply(const Effect& effect, Effects& more);
  bool read(int rank, DeferredEffects& deferred);
  void lose(int rank, const absl::Status& reason, Effects& effects);
  // Calls `change` with the port. It may begin or end a partly written message, so partial_writes_ is
  // updated.
  template <typename Change>
  void change(int rank, Change&& change);

  const Endpoint::Options options_;
  const HostMemory& memory_;
  Endpoint endpoint_;
  // By rank; empty for this rank.
  std::vector<std::optional<ShmPort>> ports_;
  int partial_writes_ = 0;  // Number of ports that have a partly written message.
  bool has_more_ = false;
  absl::Time expire_at_ = absl::InfinitePast();
};

}  // namespace gradwire::collectives::cpu
