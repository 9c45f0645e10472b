#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace gradwire::rpc {

// The barriers that one worker leads: who has come to which, and when an arrival is answered. Each list of
// members counts its barriers from 0, and the arrivals with one number belong together. A state machine
// without threads, clocks and messages; not thread-safe.
//
// An arrival has a ticket, which the caller of these methods chooses. Each ticket is answered once: by the
// method itself, which returns it, or by a later one. The last barriers of a list stay in the table, because
// a member whose connection broke may ask again for the answer.
class BarrierTable {
 public:
  // Incarnations, in ascending order, each once.
  using Members = std::vector<uint64_t>;
  // A ticket with its answer.
  struct Answer {
    uint64_t ticket;
    absl::Status status;
  };
  using Answers = std::vector<Answer>;

  // Bounds the barriers of one list that have not ended. A member that does not come must not fill the
  // memory.
  static constexpr std::size_t kMostOpen = 1024;
  // Bounds the lists, of which a group has very many.
  static constexpr std::size_t kMostLists = std::size_t{1} << 14;

  // `from` has come to a barrier of `members`, which contains it. A second arrival of the same member takes
  // the place of its first one, whose ticket is answered with Cancelled. The ticket is answered with
  // ResourceExhausted if there are too many barriers or lists.
  Answers arrive(const Members& members, uint64_t number, uint64_t from, uint64_t ticket);
  // The members that have not come to the barrier of this ticket; empty if it has been answered.
  Members missing(uint64_t ticket) const;
  // The member of this ticket waits no longer. `own` is its answer, `others` that of all other members that
  // have come, and of those that come later. Does nothing if the ticket has been answered.
  Answers give_up(uint64_t ticket, absl::Status own, absl::Status others);
  // The member is lost: ends all barriers with it, with `reason`, and forgets them.
  Answers lose(uint64_t member, const absl::Status& reason);
  // Ends all barriers with `reason`.
  Answers end_all(const absl::Status& reason);

  // Number of tickets that have not been answered.
  std::size_t waiting() const { return tickets_.size(); }

 private:
  struct Barrier {
    // The tickets of the members that have come; 0 after the answer.
    std::map<uint64_t, uint64_t> arrived;
    // Set when the barrier has ended.
    std::optional<absl::Status> result;
  };
  struct Place {
    Members members;
    uint64_t number;
    uint64_t from;
  };
  using Barriers = std::map<uint64_t, Barrier>;

  void end(Barrier& barrier, const absl::Status& status, Answers& answers);
  // Drops the barriers for which no member can ask any more.
  static void forget_old(const Members& members, Barriers& barriers);

  std::map<Members, Barriers> lists_;
  // The places of the tickets that have not been answered.
  std::map<uint64_t, Place> tickets_;
};

}  // namespace gradwire::rpc
