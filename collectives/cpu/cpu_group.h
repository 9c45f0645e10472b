#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/base/future.h"
#include "gradwire/collectives/cpu/host_group.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/collectives/cpu/lanes/lanes.h"
#include "gradwire/collectives/cpu/mesh/mesh.h"
#include "gradwire/collectives/cpu/mesh/mesh_group.h"
#include "gradwire/collectives/cpu/span.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives::cpu {

// Collectives between any ranks: through shared memory where all are on one host, by messages where they are not, and by
// both, reduced on each host before and spread on each host after, where hosts have several ranks.
//
// The same rules as HostGroup's: one operation at a time, in the same order on all members, errors that name ranks of the
// group, broken after the first. Not thread-safe but for send, receive and abort.
class CpuGroup {
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
  ~CpuGroup();

  absl::Status barrier(absl::Time deadline);
  absl::Status broadcast(Span data, int root, absl::Time deadline);
  absl::Status reduce(Span data, int root, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce(Span data, const Reducer& reducer, absl::Time deadline);
  absl::Status gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline);
  absl::Status all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline);
  absl::Status scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline);
  absl::Status reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                              absl::Time deadline);
  absl::Status all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs, absl::Time deadline);

  // As Mesh's, between ranks of the group. By way of memory where all share one host; else all by messages, so that they
  // stay in order whatever they come from.
  Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline);
  Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline);
  // The same where it can be done at once, or takes some microseconds; none: nothing has happened.
  std::optional<absl::Status> try_send(int dst, int64_t tag, Span data);
  std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data);

  void abort(const std::string& reason);

  int rank() const { return options_.rank; }
  // Of how many hosts, as far as sharing memory goes.
  int hosts() const { return static_cast<int>(leaders_.size()); }

 private:
  // A MeshGroup has two numbers.
  enum Channel : uint64_t { kPointToPoint = 0, kAll = 2, kLeaders = 4, kStride = 8 };

  explicit CpuGroup(Options options);
  absl::Status find_hosts();
  absl::Status share_memory();
  absl::Status lay_lanes();
  uint64_t channel(Channel which) const { return base_channel_ + which; }
  bool one_host() const { return host_ != nullptr && leaders_.size() == 1; }
  // Several hosts, some of which have several ranks.
  bool layered() const { return leaders_.size() > 1 && static_cast<int>(leaders_.size()) < options_.size; }
  bool leads() const { return host_ == nullptr || host_->rank() == 0; }
  std::vector<int> in_world(const std::vector<int>& members) const;
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& what, const std::string& mine);
  // Of an operation over hosts: members that wait elsewhere for this one's part must hear that it does not come.
  absl::Status over_hosts(absl::Status status);

  const Options options_;
  const uint64_t base_channel_;
  // By member: the first member on the same host.
  std::vector<int> leader_of_;
  std::vector<int> leaders_;
  // nullptr for the only member on a host.
  std::unique_ptr<HostGroup> host_;
  // Where all are on one host.
  std::unique_ptr<Lanes> lanes_;
  // Members on this host.
  std::vector<int> neighbours_;
  std::unique_ptr<MeshGroup> all_;
  std::unique_ptr<MeshGroup> between_leaders_;
};

}  // namespace gradwire::collectives::cpu
