#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/collectives/cpu/byte_collectives.h"
#include "gradwire/collectives/cpu/host_layout.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/collectives/cpu/mesh/mesh.h"
#include "gradwire/collectives/cpu/mesh/mesh_group.h"
#include "gradwire/collectives/cpu/span.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives::cpu {

// Collectives between any ranks: through shared memory where all are on one host, by messages where they are
// not, and by both, reduced on each host before and spread on each host after, where hosts have several
// ranks.
//
// Errors name ranks of the group. Not thread-safe but for send, receive and abort.
class CpuGroup final : public ByteCollectives {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    // The rank in the world of each member, ascending.
    std::vector<int> world_ranks;
    // Unique within the job.
    std::string name;
    // The group's own.
    std::shared_ptr<store::Store> store;
    // Of the world.
    std::shared_ptr<Mesh> mesh;
    absl::Duration timeout = absl::Minutes(30);
    // Ranks with the same one, not empty, share memory.
    std::string host = host_key();
    // As HostGroup's; 0: as measured.
    std::size_t slot_bytes = 0;
    std::size_t flat_bytes = 0;
    // As MeshGroup's; 0: as measured.
    std::size_t small_bytes = 0;
    std::size_t segment_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<CpuGroup>> create(Options options);
  ~CpuGroup() override;

  GRADWIRE_BYTE_COLLECTIVES;

  // As Mesh's, between ranks of the group. By way of memory where all share one host; else all by messages,
  // so that they stay in order whatever they come from.
  Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline);
  Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline);
  // The same where it can be done at once, or takes some microseconds; none: nothing has happened.
  std::optional<absl::Status> try_send(int dst, int64_t tag, Span data);
  std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data);

  void abort(const std::string& reason);

  int rank() const { return options_.rank; }
  // Of how many hosts, as far as sharing memory goes.
  int hosts() const { return static_cast<int>(layout_.leaders.size()); }

 private:
  // A MeshGroup has two numbers.
  enum Channel : uint64_t { kPointToPoint = 0, kAll = 2, kLeaders = 4, kStride = 8 };

  explicit CpuGroup(Options options);
  uint64_t channel(Channel which) const { return base_channel_ + which; }
  bool one_host() const { return layout_.one_host(); }
  // Several hosts, some of which have several ranks.
  bool layered() const {
    return layout_.leaders.size() > 1 && static_cast<int>(layout_.leaders.size()) < options_.size;
  }
  bool leads() const { return layout_.host == nullptr || layout_.host->rank() == 0; }
  std::vector<int> in_world(const std::vector<int>& members) const;
  // Returns `status`, of an operation over hosts. After an error, members that wait on other hosts for this
  // member's part are notified that it does not come.
  absl::Status over_hosts(absl::Status status);

  const Options options_;
  const uint64_t base_channel_;
  HostLayout layout_;
  std::unique_ptr<MeshGroup> all_;
  std::unique_ptr<MeshGroup> between_leaders_;
};

}  // namespace gradwire::collectives::cpu
