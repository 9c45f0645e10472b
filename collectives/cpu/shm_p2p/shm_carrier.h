#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_port.h"

namespace gradwire::collectives::cpu {

// What is left to do when the lock has been released.
struct DeferredEffects {
  // kDeliver, kEndSend and kEndReceive: whose futures are to be completed.
  Effects ended;
  // Ranks that are rung for because something was written for them, and because their ring is full.
  absl::InlinedVector<int, 4> written;
  absl::InlinedVector<int, 4> full;
};

// An Endpoint whose carrier is the rings to all other ranks of a host. Not thread-safe.
class ShmCarrier {
 public:
  ShmCarrier(const Endpoint::Options& options, const HostMemory& memory);

  // Where the rings lie: each member's two slots are those that it writes, after its Doorbell.
  static std::size_t slot_bytes(int size);
  static char* ring_memory(const HostMemory& memory, int from, int to);
  static P2pRing ring(const HostMemory& memory, int from, int to);

  Endpoint& endpoint() { return endpoint_; }
  const Endpoint& endpoint() const { return endpoint_; }
  ShmPort& port(int rank) { return *ports_[static_cast<std::size_t>(rank)]; }

  // Performs effects, and those that follow.
  void settle(Effects effects, DeferredEffects& deferred);
  // Everything that can be done now; whether there was anything.
  bool poll(DeferredEffects& deferred);
  // The last poll left something.
  bool has_more() const { return more_; }
  // Whether something waits for room in a ring.
  bool waits_for_room() const { return partial_ > 0 || endpoint_.sends().outboxes().size() > 0; }
  // Writes what waits for room in the ring to the rank; whether it wrote anything.
  bool flush(int rank, DeferredEffects& deferred);
  // Ends what is late, and what waits for ranks that are gone.
  void expire(absl::Time now, DeferredEffects& deferred);
  absl::Time next_deadline() const { return endpoint_.next_deadline(); }
  // Whether a rank waits for room in its ring to this one.
  bool is_full() const;
  absl::InlinedVector<P2pRingReader::Probe, 8> probes();

 private:
  bool is_other(int rank) const { return rank != options_.rank && !endpoint_.matcher().is_lost(rank); }
  void perform(Effect& effect, Effects& more, DeferredEffects& deferred);
  void reply(const Effect& effect, Effects& more);
  bool read(int rank, DeferredEffects& deferred);
  void lose(int rank, const absl::Status& reason, Effects& effects);
  // Calls a function of the port that may begin or end a message of which a part is written.
  template <typename Change>
  void change(int rank, Change&& change);

  const Endpoint::Options options_;
  const HostMemory& memory_;
  Endpoint endpoint_;
  // Without one of its own.
  std::vector<std::optional<ShmPort>> ports_;
  int partial_ = 0;  // Ports that are writing.
  bool more_ = false;
  absl::Time expire_at_ = absl::InfinitePast();
};

}  // namespace gradwire::collectives::cpu
