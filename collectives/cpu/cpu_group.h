#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/collectives/cpu/bytes/byte_collectives.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/host/host_layout.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_group.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives::cpu {

// Collectives between any ranks. If all ranks are on one host, they use shared memory. If each host has one
// rank, they use messages. Otherwise some operations use both: they reduce on each host first, exchange
// between the hosts' leaders, and broadcast on each host afterwards.
//
// Errors name ranks of the group. Not thread-safe, except send, receive and abort.
class CpuGroup final : public ByteCollectives {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    // The rank in the world of each member, ascending.
    std::vector<int> world_ranks;
    // Unique within the job.
    std::string name;
    // The store of the group.
    std::shared_ptr<store::Store> store;
    // The messages between all ranks of the world.
    std::shared_ptr<WorldP2p> p2p;
    absl::Duration timeout = absl::Minutes(30);
    // Ranks with the same non-empty string share memory.
    std::string host = host_key();
    // As in HostGroup::Options. 0: the measured default.
    std::size_t slot_bytes = 0;
    std::size_t flat_bytes = 0;
    // As in P2pGroup::Options. 0: the measured default.
    std::size_t small_bytes = 0;
    std::size_t segment_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<CpuGroup>> create(Options options);
  ~CpuGroup() override;

  GRADWIRE_BYTE_COLLECTIVES;

  // As in WorldP2p, between ranks of the group. If all ranks share one host, messages use shared memory.
  // Otherwise all of them use `p2p`, even between ranks of one host, so that a receive from any rank sees
  // them in order.
  Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline);
  Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline);
  // Like send() and receive(), if the operation can complete at once or within some microseconds. Otherwise
  // returns nullopt, and nothing has happened.
  std::optional<absl::Status> try_send(int dst, int64_t tag, Span data);
  std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data);

  void abort(const std::string& reason);

  int rank() const { return options_.rank; }
  // Number of hosts; ranks that cannot share memory count as separate hosts.
  int hosts() const { return static_cast<int>(layout_.leaders.size()); }

 private:
  // Offsets from base_channel_. A P2pGroup uses two channels.
  enum Channel : uint64_t { kPointToPoint = 0, kAll = 2, kLeaders = 4, kStride = 8 };

  explicit CpuGroup(Options options);
  uint64_t channel(Channel which) const { return base_channel_ + which; }
  bool one_host() const { return layout_.one_host(); }
  // Whether there are several hosts, and some have several ranks.
  bool layered() const {
    return layout_.leaders.size() > 1 && static_cast<int>(layout_.leaders.size()) < options_.size;
  }
  bool leads() const { return layout_.host == nullptr || layout_.host->rank() == 0; }
  std::vector<int> in_world(const std::vector<int>& members) const;
  // Returns `status`, the result of an operation over hosts. After an error it aborts the group, so that
  // members on other hosts do not wait for this member's part.
  absl::Status over_hosts(absl::Status status);

  const Options options_;
  const uint64_t base_channel_;
  HostLayout layout_;
  std::unique_ptr<P2pGroup> all_;
  std::unique_ptr<P2pGroup> between_leaders_;
};

}  // namespace gradwire::collectives::cpu
