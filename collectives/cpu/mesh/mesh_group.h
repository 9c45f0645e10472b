#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/byte_collectives.h"
#include "gradwire/collectives/cpu/mesh/mesh.h"
#include "gradwire/collectives/cpu/mesh/mesh_operation.h"
#include "gradwire/collectives/cpu/span.h"

namespace gradwire::collectives::cpu {

// Collectives among some ranks of a mesh. One member's end; members are told by their position in the list.
//
// Sizes may differ between members, where both ends of each transfer, and for all_gather and reduce_scatter
// all members, have the same. Whichever member an operation fails on tells the others, on whom the operation
// under way, or the next, fails with that reason, too. What InvalidArgument refuses before it has begun
// breaks nothing.
//
// Not thread-safe but for abort().
class MeshGroup final : public ByteCollectives {
 public:
  struct Options {
    std::shared_ptr<Mesh> mesh;
    // Of the world, by position; and this member's position.
    std::vector<int> ranks;
    int position = 0;
    // What errors call the members, by position; empty: their rank of the world.
    std::vector<int> names;
    // This number and the next one are the group's alone, the same for all members.
    uint64_t channel = 0;
    // All-reduce, broadcast, reduce and the like of up to so many bytes go by the shortest way, longer ones
    // by the one with the least traffic, in pieces of segment_bytes. The same for all members. As measured
    // over tcp on the loopback interface, with two ranks and with four.
    std::size_t small_bytes = std::size_t{128} << 10;
    std::size_t segment_bytes = std::size_t{512} << 10;
  };
  explicit MeshGroup(Options options);
  ~MeshGroup() override;
  MeshGroup(const MeshGroup&) = delete;
  MeshGroup& operator=(const MeshGroup&) = delete;

  int rank() const { return options_.position; }
  int size() const { return static_cast<int>(options_.ranks.size()); }

  GRADWIRE_BYTE_COLLECTIVES;

  // The operation under way, and all later ones, end with Aborted, on all members. From any thread.
  void abort(const std::string& reason);
  // Why the group is broken; OK while it is not.
  absl::Status broken() const;

 private:
  struct State;
  using Body = absl::FunctionRef<absl::Status(MeshOperation&)>;

  absl::Status run(const char* name, absl::Time deadline, Body body);
  // Remembers the first reason, tells the others, and ends what is under way.
  void break_with(const absl::Status& reason);
  absl::Status check_root(int root) const;
  absl::Status check_list(const char* what, absl::Span<const Span> list) const;
  static absl::Status check_elements(const Reducer& reducer, Span data);
  const Options options_;
  const std::shared_ptr<State> state_;
  int64_t next_tag_ = 0;
  bool failed_ = false;  // An operation has, here.
  MeshOperation::Scratch scratch_;
};

}  // namespace gradwire::collectives::cpu
