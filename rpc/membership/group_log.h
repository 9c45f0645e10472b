#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/membership/roster.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::rpc {

// Decides whether the members of a group of fixed size come together: a pure state machine. Its inputs are
// the effects of the lines of the group's log, so that all readers come to the same conclusion.
//
//   forming -> complete   All ids are members, and none of these members is refused. After that a worker that
//                         cannot join fails alone.
//   forming -> failed     A worker is refused: two workers want one name or id, so another id would stay
//                         empty. All present members are refused, too: they report the reason and leave. A
//                         worker that comes later learns the reason once. A worker that joins after that
//                         forms the group anew.
//
// Not thread-safe.
class Formation {
 public:
  // Call after the roster has applied a join.
  void joined(const Roster& roster) {
    const std::size_t members = roster.members().size() - refused_.size();
    if (roster.world_size() > 0 && members >= static_cast<std::size_t>(roster.world_size())) complete_ = true;
    failed_by_ = 0;
    informed_.clear();
  }
  // A member has left or died.
  void removed(uint64_t incarnation) { refused_.erase(incarnation); }
  // Call for a Refusal line: worker `incarnation` could not join, as the worker with `id` reports. Returns
  // true if that refuses the present members, which is so while the group forms. A repeated line for the same
  // refusal only records that the worker with `id` knows the reason.
  bool refuse(const Roster& roster, uint64_t incarnation, int32_t id) {
    if (has_failed() && incarnation == failed_by_) {
      informed_.insert(id);
      return false;
    }
    if (incarnation == 0 || !is_forming(roster)) return false;
    failed_by_ = incarnation;
    informed_ = {id};
    for (const auto& [member_id, member] : roster.members()) {
      refused_.insert(member.incarnation);
      informed_.insert(member_id);
    }
    return true;
  }

  bool is_forming(const Roster& roster) const {
    return !complete_ && roster.world_size() > 0 && roster.members().size() > refused_.size();
  }
  // Whether the member is refused. If so, it is about to leave.
  bool is_refused(uint64_t incarnation) const { return refused_.contains(incarnation); }
  std::size_t refused() const { return refused_.size(); }
  // Whether a refusal has happened and no worker has joined after it.
  bool has_failed() const { return failed_by_ != 0; }
  // Whether the formation has failed, and the worker with this id does not know it.
  bool is_late(int32_t id) const { return has_failed() && !informed_.contains(id); }

 private:
  bool complete_ = false;
  // Incarnations of refused members that have not left yet.
  HashSet<uint64_t> refused_;
  // Incarnation of the refused worker; 0 if no refusal has happened, or if a worker has joined after it.
  uint64_t failed_by_ = 0;
  // Ids that know of that refusal.
  HashSet<int32_t> informed_;
};

// Translates the error of a call to the store, for a worker that joins. Aborted, which a store returns if its
// server was restarted and has lost its contents, becomes Unavailable: the worker can try again, and join the
// group that forms in the new store.
absl::Status store_failure(const absl::Status& status);
// As store_failure(), for a member of a group. Aborted stays: the group's log is lost for good. The message
// says what follows from that, and what to do.
absl::Status store_failure_of_member(const absl::Status& status);

// Returns the line with which `by` declares `worker` dead.
proto::LogLine death_line(const Worker& worker, const Worker& by, const std::string& reason);

// A group's log in the store (proto/membership.proto), and the position up to which this process has read it.
// Every call may wait for the store. Not thread-safe.
class GroupLog {
 public:
  // Delay of the users of this class before they try again.
  static constexpr absl::Duration kRetryDelay = absl::Milliseconds(500);
  // Maximum time that an append of one line should take.
  static constexpr absl::Duration kAppend = absl::Seconds(5);

  explicit GroupLog(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

  // The content and effect of a line. `record`: the record of a worker that joined, with its id.
  struct Event {
    Roster::Change change;
    proto::WorkerRecord record;
    // For kDied: the name of the worker that declared it dead, and the reason.
    std::string by;
    std::string reason;
    // Set if a worker could not join and the present members are refused therefore.
    std::optional<proto::Refusal> refusal;
  };

  // Waits for the next line and applies it. Errors: DeadlineExceeded if there was no line in time
  // (store::is_wait_timeout), or if the store did not answer; Unavailable if the store is gone;
  // InvalidArgument for a malformed line. A line with an invalid worker name (base/name.h) is skipped with a
  // warning: its event changes nothing.
  absl::StatusOr<Event> read(absl::Duration timeout);

  // Returns OK if the store answers. Errors as read().
  absl::Status check_store(absl::Duration timeout);

  // Appends `line`. compare_set succeeds only at the first free position, so other workers' lines before it
  // are read and applied first. In a loop:
  //   1. If want() returns false, nothing is appended, and the call succeeds.
  //   2. Tries to write `line` at the next position.
  //   3. Applies the line that is at that position now, and passes its event to `on_event`.
  //   4. Ends if that line is `line` itself.
  // Errors: as read(); Unavailable if other lines kept coming for longer than `timeout`.
  template <class OnEvent, class Want>
  absl::Status append(const proto::LogLine& line, absl::Duration timeout, OnEvent on_event, Want want);

  // Appends that a worker leaves, if it is a member. Closes the log if it was the last member.
  absl::Status leave(uint64_t incarnation);

  // Closes the log after the last member has left, and deletes the lines of the log before it. A log that
  // ended with a refusal is not closed, because workers that come late must read the reason.
  absl::Status close(absl::Duration timeout);

  const Roster& roster() const { return roster_; }
  const Formation& formation() const { return formation_; }
  store::Store& store() { return *store_; }

 private:
  std::string key(uint64_t position) const;
  absl::StatusOr<uint64_t> current_generation(absl::Duration timeout);
  // Finds the log in use, unless that was done before.
  absl::Status open(absl::Duration timeout);
  absl::StatusOr<Event> apply(const std::string& serialized);
  // Tries to append once. Returns the line that is at the next position afterwards, and whether it is
  // `serialized` itself. `present` is empty if the log was closed.
  struct Attempt {
    bool appended = false;
    std::string present;
  };
  absl::StatusOr<Attempt> try_append(const std::string& serialized, absl::Duration timeout);
  void restart(uint64_t generation);
  absl::Status advance(absl::Duration timeout);

  const std::shared_ptr<store::Store> store_;
  bool opened_ = false;
  uint64_t generation_ = 0;
  Roster roster_;
  Formation formation_;
};

template <class OnEvent, class Want>
absl::Status GroupLog::append(const proto::LogLine& line, absl::Duration timeout, OnEvent on_event,
                              Want want) {
  const std::string serialized = line.SerializeAsString();
  const absl::Time deadline = Clock::system().now() + timeout;
  while (want()) {
    if (Clock::system().now() > deadline) {
      return absl::UnavailableError(
          absl::StrCat("cannot append to the group's log: it grows faster than this worker reads it (",
                       store_->description(), ")"));
    }
    absl::StatusOr<Attempt> attempt = try_append(serialized, timeout);
    if (!attempt.ok()) return attempt.status();
    if (attempt->present.empty()) continue;  // The log was closed; go on with the next one.
    absl::StatusOr<Event> event = apply(attempt->present);
    if (!event.ok()) return event.status();
    on_event(*event);
    if (attempt->appended) break;
  }
  return absl::OkStatus();
}

}  // namespace gradwire::rpc
