#include "gradwire/rpc/membership/group_log.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/name.h"

namespace gradwire::rpc {
namespace {

constexpr char kGeneration[] = "generation";
constexpr absl::Duration kLeave = absl::Seconds(2);

}  // namespace

absl::Status store_failure(const absl::Status& status) {
  return absl::IsAborted(status) ? absl::UnavailableError(status.message()) : status;
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
  GRADWIRE_ASSIGN_OR_RETURN(std::string text, store_->try_compare_set(kGeneration, "", "", timeout));
  uint64_t generation = 0;
  if (!text.empty() && !absl::SimpleAtoi(text, &generation)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" in the store is not a number of a group's log (", store_->description(), ")"));
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
      // No entry of the roster's: it only counts the position.
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
    // Whoever comes to it passes over it in the same way.
    roster_.apply({.kind = RosterEntry::Kind::kLeave});
    return absl::InvalidArgumentError(absl::StrCat("the value in the store of \"", at,
                                                   "\" is not a line of a group's log (",
                                                   store_->description(), ")"));
  }
  if (!name.ok()) {
    // Every reader passes over it in the same way, so that they agree on what follows.
    log(LogLevel::kWarning, "passed over \"", key(roster_.position()), "\" in the ", store_->description(),
        ": ", name.message());
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
      formation_.gone(event.change.worker.incarnation);
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

absl::Status GroupLog::ask(absl::Duration timeout) {
  return store_->try_num_keys_under(kGeneration, timeout).status();
}

absl::StatusOr<GroupLog::Attempt> GroupLog::try_append(const std::string& serialized,
                                                       absl::Duration timeout) {
  GRADWIRE_RETURN_IF_ERROR(open(timeout));
  const std::string at = key(roster_.position());
  Attempt attempt;
  GRADWIRE_ASSIGN_OR_RETURN(attempt.present, store_->try_compare_set(at, "", serialized, timeout));
  if (attempt.present != serialized) return attempt;
  // Where a log was closed and its lines are gone, any position is free.
  GRADWIRE_ASSIGN_OR_RETURN(const uint64_t generation, current_generation(timeout));
  if (generation < generation_) {
    // Whoever closed the log before this one has not got so far; now the line counts.
    GRADWIRE_RETURN_IF_ERROR(advance(timeout));
  } else if (generation > generation_) {
    GRADWIRE_RETURN_IF_ERROR(store_->try_delete_key(at, timeout).status());
    restart(generation);
    return Attempt();
  }
  attempt.appended = true;
  return attempt;
}

// The store's number becomes this log's, and never a smaller one.
absl::Status GroupLog::advance(absl::Duration timeout) {
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const uint64_t present, current_generation(timeout));
    if (present >= generation_) return absl::OkStatus();
    const std::string before = present == 0 ? "" : absl::StrCat(present);
    GRADWIRE_RETURN_IF_ERROR(
        store_->try_compare_set(kGeneration, before, absl::StrCat(generation_), timeout).status());
  }
}

absl::Status GroupLog::leave(uint64_t incarnation) {
  proto::LogLine line;
  line.mutable_leave()->set_incarnation(incarnation);
  GRADWIRE_RETURN_IF_ERROR(append(
      line, kLeave, [](const Event&) {},
      [&] { return roster_.status(incarnation) == Roster::Status::kMember; }));
  const bool is_over = roster_.members().empty() && !formation_.has_failed();
  return is_over ? close(kLeave) : absl::OkStatus();
}

absl::Status GroupLog::close(absl::Duration timeout) {
  proto::LogLine closed;
  closed.set_closed(true);
  const std::string serialized = closed.SerializeAsString();
  GRADWIRE_ASSIGN_OR_RETURN(std::string present,
                            store_->try_compare_set(key(roster_.position()), "", serialized, timeout));
  if (present != serialized) return absl::OkStatus();  // Somebody has joined.
  restart(generation_ + 1);
  GRADWIRE_RETURN_IF_ERROR(advance(timeout));
  if (generation_ == 1) return absl::OkStatus();
  // Not this log's lines: others may still be reading of their own leaving.
  for (uint64_t position = 0;; ++position) {
    const std::string old = absl::StrCat("log/", generation_ - 2, "/", position);
    GRADWIRE_ASSIGN_OR_RETURN(const bool deleted, store_->try_delete_key(old, timeout));
    if (!deleted) return absl::OkStatus();
  }
}

}  // namespace gradwire::rpc
