#include "gradwire/rpc/membership/group_log.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/name.h"

// A store keeps the logs of successive groups: `generation` in the store is the number of the log in use, and
// log/<number>/<position> are its lines. Every reader must draw the same conclusions from the same lines. So
// apply() uses nothing but the line and the effect of the lines before it. A line that a reader cannot use
// still takes its position.
namespace gradwire::rpc {
namespace {

constexpr char kGeneration[] = "generation";
constexpr absl::Duration kLeave = absl::Seconds(2);

}  // namespace

absl::Status store_failure(const absl::Status& status) {
  return absl::IsAborted(status) ? absl::UnavailableError(status.message()) : status;
}

absl::Status store_failure_of_member(const absl::Status& status) {
  if (!absl::IsAborted(status)) return status;
  return absl::AbortedError(absl::StrCat(status.message(),
                                         "; no worker can join this group any more: its members go on, but "
                                         "restart all of them to have joins again"));
}

proto::LogLine death_line(const Worker& worker, const Worker& by, const std::string& reason) {
  proto::LogLine line;
  line.mutable_death()->set_incarnation(worker.incarnation);
  line.mutable_death()->set_by(by.incarnation);
  line.mutable_death()->set_by_name(by.name);
  line.mutable_death()->set_reason(reason);
  return line;
}

std::string GroupLog::key(uint64_t position) const {
  return absl::StrCat("log/", generation_, "/", position);
}

absl::StatusOr<uint64_t> GroupLog::current_generation(absl::Duration timeout) {
  // Replacing the empty string by itself reads the key without waiting for it. An empty value means
  // generation 0.
  GRADWIRE_ASSIGN_OR_RETURN(std::string text, store_->try_compare_set(kGeneration, "", "", timeout));
  uint64_t generation = 0;
  if (!text.empty() && !absl::SimpleAtoi(text, &generation)) {
    return absl::InvalidArgumentError(absl::StrCat("malformed \"generation\" in ", store_->description(),
                                                   ": got \"", text,
                                                   "\", expected the number of the group's log"));
  }
  return generation;
}

void GroupLog::restart(uint64_t generation) {
  generation_ = generation;
  roster_ = Roster();
  formation_ = Formation();
}

absl::Status GroupLog::open(absl::Duration timeout) {
  if (opened_) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const uint64_t generation, current_generation(timeout));
  restart(generation);
  opened_ = true;
  return absl::OkStatus();
}

absl::StatusOr<GroupLog::Event> GroupLog::apply(const std::string& serialized) {
  proto::LogLine line;
  Event event;
  RosterEntry entry;
  absl::Status name;
  // A line without an event is handled as malformed below.
  if (!line.ParseFromString(serialized)) line.Clear();
  switch (line.event_case()) {
    case proto::LogLine::kJoin: {
      event.record = line.join().worker();
      entry.kind = RosterEntry::Kind::kJoin;
      entry.worker = {event.record.name(), event.record.id(), event.record.incarnation()};
      entry.world_size = line.join().world_size();
      name = check_name("worker name", entry.worker.name);
      break;
    }
    case proto::LogLine::kLeave:
      entry.kind = RosterEntry::Kind::kLeave;
      entry.worker.incarnation = line.leave().incarnation();
      break;
    case proto::LogLine::kDeath:
      entry.kind = RosterEntry::Kind::kDeath;
      entry.worker.incarnation = line.death().incarnation();
      entry.by = line.death().by();
      event.by = line.death().by_name();
      event.reason = line.death().reason();
      name = check_name("worker name", event.by);
      break;
    case proto::LogLine::kRefusal:
      // A refusal does not change the roster. The entry without an incarnation only advances the position.
      roster_.apply({.kind = RosterEntry::Kind::kLeave});
      if (formation_.refuse(roster_, line.refusal().incarnation(), line.refusal().id())) {
        event.refusal = std::move(*line.mutable_refusal());
      }
      return event;
    case proto::LogLine::kClosed:
      restart(generation_ + 1);
      return event;
    default:
      break;
  }
  if (entry.worker.incarnation == 0 || entry.worker.id < -1 ||
      entry.worker.id == std::numeric_limits<int32_t>::max()) {
    const std::string at = key(roster_.position());
    // Every reader skips a malformed line in the same way.
    roster_.apply({.kind = RosterEntry::Kind::kLeave});
    return absl::InvalidArgumentError(absl::StrCat("malformed line \"", at, "\" of the group's log in ",
                                                   store_->description(),
                                                   ": was it written by another program?"));
  }
  if (!name.ok()) {
    // Every reader skips the line in the same way, so that all agree on the lines after it.
    log(LogLevel::kWarning, "skipped line \"", key(roster_.position()), "\" of the group's log in ",
        store_->description(), ": ", name.message());
    roster_.apply({.kind = RosterEntry::Kind::kLeave});
    return Event();
  }
  event.change = roster_.apply(entry);
  switch (event.change.what) {
    case Roster::Change::What::kJoined:
      event.record.set_id(event.change.worker.id);
      formation_.joined(roster_);
      break;
    case Roster::Change::What::kLeft:
    case Roster::Change::What::kDied:
      formation_.removed(event.change.worker.incarnation);
      break;
    default:
      break;
  }
  return event;
}

absl::StatusOr<GroupLog::Event> GroupLog::read(absl::Duration timeout) {
  GRADWIRE_RETURN_IF_ERROR(open(timeout));
  GRADWIRE_ASSIGN_OR_RETURN(std::string line, store_->try_get(key(roster_.position()), timeout));
  return apply(line);
}

absl::Status GroupLog::check_store(absl::Duration timeout) {
  return store_->try_num_keys_under(kGeneration, timeout).status();
}

// The problem: a group may end, and its log be deleted, between the moments when this worker reads and
// writes. The steps:
//   1. Write the line at the next position, if that is free. Otherwise return the line that is there.
//   2. If the write succeeded, compare the generation, because the log may have been deleted.
//   3. If a later log is in use, take the line back and go on with that log.
absl::StatusOr<GroupLog::Attempt> GroupLog::try_append(const std::string& serialized,
                                                       absl::Duration timeout) {
  GRADWIRE_RETURN_IF_ERROR(open(timeout));
  const std::string at = key(roster_.position());
  Attempt attempt;
  GRADWIRE_ASSIGN_OR_RETURN(attempt.present, store_->try_compare_set(at, "", serialized, timeout));
  if (attempt.present != serialized) return attempt;
  // In a log that was closed and whose lines were deleted, every position is free: the write succeeds, but
  // counts only if this log is still in use. Compare its generation with the one in the store.
  GRADWIRE_ASSIGN_OR_RETURN(const uint64_t generation, current_generation(timeout));
  if (generation < generation_) {
    // The worker that closed the previous log has not advanced `generation` yet (or has died). This worker
    // does it, and the line counts.
    GRADWIRE_RETURN_IF_ERROR(advance(timeout));
  } else if (generation > generation_) {
    GRADWIRE_RETURN_IF_ERROR(store_->try_delete_key(at, timeout).status());
    restart(generation);
    return Attempt();
  }
  attempt.appended = true;
  return attempt;
}

// Raises `generation` in the store to this log's number. Never lowers it.
absl::Status GroupLog::advance(absl::Duration timeout) {
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const uint64_t present, current_generation(timeout));
    if (present >= generation_) return absl::OkStatus();
    const std::string before = present == 0 ? "" : absl::StrCat(present);
    GRADWIRE_RETURN_IF_ERROR(
        store_->try_compare_set(kGeneration, before, absl::StrCat(generation_), timeout).status());
  }
}

// If several workers leave at the same time, the last line in the log decides which of them was the last
// member: each has read all lines before its own. Only that worker closes the log.
absl::Status GroupLog::leave(uint64_t incarnation) {
  proto::LogLine line;
  line.mutable_leave()->set_incarnation(incarnation);
  GRADWIRE_RETURN_IF_ERROR(append(
      line, kLeave, [](const Event&) {},
      [&] { return roster_.status(incarnation) == Roster::Status::kMember; }));
  const bool is_over = roster_.members().empty() && !formation_.has_failed();
  return is_over ? close(kLeave) : absl::OkStatus();
}

// A worker may join while the last one closes. Both write at the same position, and only one succeeds. If the
// closing line is there, the joining worker reads it and goes to the next log. The steps:
//   1. Append the closing line.
//   2. Raise `generation`. If this worker dies before that, the next writer does it (try_append).
//   3. Delete the lines of the log before.
absl::Status GroupLog::close(absl::Duration timeout) {
  proto::LogLine closed;
  closed.set_closed(true);
  const std::string serialized = closed.SerializeAsString();
  GRADWIRE_ASSIGN_OR_RETURN(std::string present,
                            store_->try_compare_set(key(roster_.position()), "", serialized, timeout));
  if (present != serialized) return absl::OkStatus();  // Another worker has joined.
  restart(generation_ + 1);
  GRADWIRE_RETURN_IF_ERROR(advance(timeout));
  if (generation_ == 1) return absl::OkStatus();
  // Delete the lines of the log before the closed one. The closed log's own lines stay for now: other workers
  // may still have to read there that they have left.
  // Positions have no gaps, so the first one that does not exist ends the log.
  for (uint64_t position = 0;; ++position) {
    const std::string old = absl::StrCat("log/", generation_ - 2, "/", position);
    GRADWIRE_ASSIGN_OR_RETURN(const bool deleted, store_->try_delete_key(old, timeout));
    if (!deleted) return absl::OkStatus();
  }
}

}  // namespace gradwire::rpc
