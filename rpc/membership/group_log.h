#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/membership/formation.h"
#include "gradwire/rpc/membership/roster.h"
#include "gradwire/store/store.h"

namespace gradwire::rpc {

// A call to the store failed with `status`. Aborted, of a store whose server was started again and has lost
// what it had, becomes Unavailable: among workers Aborted means that the group goes on without this one.
absl::Status store_failure(const absl::Status& status);

// The line by which `by` declares `worker` dead.
proto::LogLine death_line(const Worker& worker, const Worker& by, const std::string& reason);

// A group's log in the store (proto/membership.proto), and how far this process has read it. Each call may
// wait for the store. Not thread-safe.
class GroupLog {
 public:
  // How long its users wait before they try again, and how long appending one line may take.
  static constexpr absl::Duration kAgain = absl::Milliseconds(500);
  static constexpr absl::Duration kAppend = absl::Seconds(5);

  explicit GroupLog(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

  // The content and effect of a line. `record`: of the worker that joined, with its id.
  struct Event {
    Roster::Change change;
    proto::WorkerRecord record;
    // kDied: who declared it dead, and why.
    std::string by;
    std::string reason;
    // A worker could not join, and so the members up to here are refused.
    std::optional<proto::Refusal> refusal;
  };

  // Waits for the next line and applies it. DeadlineExceeded without one in time (store::is_wait_timeout), or
  // if the store does not answer; Unavailable when the store is gone; InvalidArgument for a line that no
  // worker wrote. A line with a bad name (base/name.h) is passed over with a warning in the log: its event
  // changes nothing.
  absl::StatusOr<Event> read(absl::Duration timeout);

  // Whether the store answers: OK, else as read().
  absl::Status ask(absl::Duration timeout);

  // Makes `line` the next one, reading those that others wrote first: calls `before` for each of them, and
  // again ahead of each attempt, until it returns false (then nothing is appended) or the line is in the log;
  // then that event is returned too.
  template <class OnEvent, class Want>
  absl::Status append(const proto::LogLine& line, absl::Duration timeout, OnEvent on_event, Want want);

  // Appends that a worker leaves, if it is a member, and ends the log behind the last.
  absl::Status leave(uint64_t incarnation);

  // After the last member has left: the log ends, and the lines of the one before it go. Not behind a
  // refusal, which workers that come late have to read.
  absl::Status close(absl::Duration timeout);

  const Roster& roster() const { return roster_; }
  const Formation& formation() const { return formation_; }
  store::Store& store() { return *store_; }

 private:
  std::string key(uint64_t position) const;
  absl::StatusOr<uint64_t> current_generation(absl::Duration timeout);
  // Begins with the log in use, unless that has been done.
  absl::Status open(absl::Duration timeout);
  absl::StatusOr<Event> apply(const std::string& serialized);
  // Tries once. Returns the line at the next position then, and whether it is `serialized` itself.
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
          absl::StrCat("the group's log grows faster than it is read (", store_->description(), ")"));
    }
    absl::StatusOr<Attempt> attempt = try_append(serialized, timeout);
    if (!attempt.ok()) return attempt.status();
    if (attempt->present.empty()) continue;  // The log was closed meanwhile.
    absl::StatusOr<Event> event = apply(attempt->present);
    if (!event.ok()) return event.status();
    on_event(*event);
    if (attempt->appended) break;
  }
  return absl::OkStatus();
}

}  // namespace gradwire::rpc
