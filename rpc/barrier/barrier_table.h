#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/rpc/limits/worker_counts.h"

namespace gradwire::rpc {

// The barriers that one worker leads: who has come to which, and when an arrival is answered. Each list of
// members counts its barriers from 0, and the arrivals with one number belong together. A state machine
// without threads, clocks and messages; not thread-safe.
//
// An arrival has a ticket, which the caller of these methods chooses. Each ticket is answered once: by the
// method itself, which returns it, or by a later one. The results of the last barriers of a list stay in the
// table, because a member whose connection broke may ask again for the answer.
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

  // Bounds the tickets of one member that have not been answered, over all lists. A barrier that has not
  // ended has such a ticket, so this also bounds the barriers that a member can leave open.
  static constexpr std::size_t kMostWaiting = 1024;
  // Bounds the results that a list keeps.
  static constexpr std::size_t kMostResults = 64;
  // Bounds the lists. The list that has had no open barrier for the longest time is dropped for a new one.
  static constexpr std::size_t kMostLists = std::size_t{1} << 12;

  // `from` has come to a barrier of `members`, which contains it. A second arrival of the same member takes
  // the place of its first one, whose ticket is answered with Cancelled. The ticket is answered with
  // ResourceExhausted if the member waits for too many barriers, or too many lists have an open one; with
  // DeadlineExceeded if the barrier has ended and its result is not kept.
  Answers arrive(const Members& members, uint64_t number, uint64_t from, uint64_t ticket);
  // The members that have not come to the barrier of this ticket; empty if it has been answered.
  Members missing(uint64_t ticket) const;
  // The member of this ticket waits no longer. `own` is its answer, `others` that of all other members that
  // have come, and of those that come later. Does nothing if the ticket has been answered.
  Answers give_up(uint64_t ticket, absl::Status own, absl::Status others);
  // The member is lost: ends all barriers with it, with `reason`, and forgets them.
  Answers lose(uint64_t member, const absl::Status& reason);
  // Ends all barriers with `reason`, and forgets them.
  Answers end_all(const absl::Status& reason);

  // Number of tickets that have not been answered.
  std::size_t waiting() const { return tickets_.size(); }
  // Number of lists in the table.
  std::size_t lists() const { return lists_.size(); }

 private:
  // The tickets of the members that have come to a barrier that has not ended.
  using Arrived = std::map<uint64_t, uint64_t>;
  struct List {
    // By number. An open barrier has a ticket, and stays until it ends.
    std::map<uint64_t, Arrived> open;
    std::map<uint64_t, absl::Status> results;
    // A barrier below this number that is in neither map has ended.
    uint64_t forgotten_below = 0;
    // The key in idle_ of a list without open barriers.
    uint64_t idle_since = 0;
  };
  using Lists = std::map<Members, List>;
  struct Entry {
    // Valid while the ticket is there, because only a list without open barriers is dropped.
    Lists::iterator list;
    uint64_t number;
    uint64_t from;
  };

  // Returns the list, which is new if it was not there; end() if there are too many.
  Lists::iterator find_list(const Members& members);
  // Adds the ticket's answer and removes its place.
  void answer(uint64_t ticket, absl::Status status, Answers& answers);
  // Ends an open barrier and keeps its result.
  void end(Lists::iterator list, uint64_t number, const absl::Status& status, Answers& answers);
  // Ends all barriers of the list and drops it. Returns the next list.
  Lists::iterator drop(Lists::iterator list, const absl::Status& reason, Answers& answers);

  Lists lists_;
  // The lists without open barriers, the one that has been so for the longest time first.
  std::map<uint64_t, Lists::iterator> idle_;
  uint64_t next_idle_ = 1;
  // The places of the tickets that have not been answered.
  std::map<uint64_t, Entry> tickets_;
  // Their number for each member.
  WorkerCounts waiting_of_;
};

}  // namespace gradwire::rpc
