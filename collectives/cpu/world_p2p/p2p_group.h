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
#include "gradwire/collectives/cpu/bytes/byte_collectives.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_operation.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"

namespace gradwire::collectives::cpu {

// One member's end of the collectives among some ranks of a WorldP2p. Members are identified by their
// position in the list of ranks.
//
// Sizes may differ between members, but both ends of each transfer must agree; in all_gather and
// reduce_scatter the lists of all members must. Each receive compares the size of its message. If an
// operation fails on one member, that member notifies the others: their current operation, or the next one,
// fails with the same reason. Arguments that are refused with InvalidArgument before the operation has begun
// do not break the group.
//
// Not thread-safe, except abort().
class P2pGroup final : public ByteCollectives {
 public:
  struct Options {
    std::shared_ptr<WorldP2p> p2p;
    // Ranks of the members in the world, by position, and this member's position.
    std::vector<int> ranks;
    int position = 0;
    // Ranks of the members in error messages, by position. Empty: their ranks of the world.
    std::vector<int> names;
    // The group uses this channel and the next one, and no one else does. The same for all members.
    uint64_t channel = 0;
    // Operations on at most `small_bytes` bytes use the algorithm with the fewest steps. Longer ones use the
    // algorithm with the least traffic, in pieces of segment_bytes. The same for all members. The defaults
    // were measured over tcp on the loopback interface, with two ranks and with four.
    std::size_t small_bytes = std::size_t{128} << 10;
    std::size_t segment_bytes = std::size_t{512} << 10;
  };
  explicit P2pGroup(Options options);
  ~P2pGroup() override;
  P2pGroup(const P2pGroup&) = delete;
  P2pGroup& operator=(const P2pGroup&) = delete;

  int rank() const { return options_.position; }
  int size() const { return static_cast<int>(options_.ranks.size()); }

  GRADWIRE_BYTE_COLLECTIVES;

  // The current operation and all later ones fail with Aborted, on all members. Thread-safe.
  void abort(const std::string& reason);
  // Why the group is broken; OK while it is not.
  absl::Status broken() const;

 private:
  struct State;
  using Body = absl::FunctionRef<absl::Status(P2pOperation&)>;

  absl::Status run(const char* name, absl::Time deadline, Body body);
  // Stores the first reason, notifies the others, and ends the current operation.
  void break_with(const absl::Status& reason);
  absl::Status check_root(int root) const;
  absl::Status check_list(const char* what, absl::Span<const Span> list) const;
  static absl::Status check_elements(const Reducer& reducer, Span data);
  const Options options_;
  const std::shared_ptr<State> state_;
  // Forgets the channel of the notes when this group and the notes that it sends have ended.
  const std::shared_ptr<void> notes_;
  int64_t next_tag_ = 0;
  bool failed_ = false;  // An operation has failed on this member.
  P2pOperation::Scratch scratch_;
};

}  // namespace gradwire::collectives::cpu
