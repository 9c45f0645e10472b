#include "gradwire/rpc/membership/joining.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/wall_clock.h"

namespace gradwire::rpc {

using What = Roster::Change::What;

namespace {

// How long a worker is given to show that it lives.
constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr absl::Duration kToBeHeard = absl::Seconds(10);
// How long workers that come late learn why the group did not form. One that comes after that is of another
// attempt.
constexpr absl::Duration kToldFor = absl::Seconds(30);

absl::Duration left_until(absl::Time deadline) {
  return std::max(absl::ZeroDuration(), deadline - Clock::system().now());
}

absl::Status cannot_form(absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("the group cannot form: ", reason));
}

absl::Status while_joining(const absl::Status& status) {
  return with_context(store_failure(status), "joining the group");
}

}  // namespace

Joining::Joining(GroupLog& log, Options options)
    : log_(log), options_(std::move(options)), deadline_(Clock::system().now() + options_.timeout) {
  entry_.worker = options_.self;
  entry_.world_size = options_.world_size;
}

absl::StatusOr<Joining::Group> Joining::run(proto::WorkerRecord record) {
  proto::LogLine line;
  *line.mutable_join()->mutable_worker() = std::move(record);
  line.mutable_join()->set_world_size(options_.world_size);
  // 1. Writes this worker's line, once nobody is in the way.
  GRADWIRE_RETURN_IF_ERROR(enter(line));
  // 2. Reads on until the group is complete.
  GRADWIRE_RETURN_IF_ERROR(wait_for_all());
  // 3. Says who is in it.
  Group group{entry_.worker, {}, std::move(gone_)};
  for (const auto& [id, worker] : log_.roster().members()) {
    group.members.push_back({worker, records_[worker.incarnation]});
    group.members.back().record.set_id(id);
  }
  return group;
}

void Joining::note(const GroupLog::Event& event) {
  if (event.refusal.has_value()) refusal_ = *event.refusal;
  const Worker& worker = event.change.worker;
  switch (event.change.what) {
    case What::kJoined:
      refusal_.Clear();
      records_[worker.incarnation] = event.record;
      if (worker.incarnation == entry_.worker.incarnation) {
        entry_.worker = worker;
        entered_ = true;
      }
      break;
    case What::kLeft:
    case What::kDied:
      records_.erase(worker.incarnation);
      gone_.push_back(worker);
      break;
    default:
      break;
  }
}

absl::Status Joining::enter(const proto::LogLine& line) {
  while (true) {
    // Read the lines that are there already, so that no attempt is made that cannot succeed.
    absl::StatusOr<GroupLog::Event> event = log_.read(absl::ZeroDuration());
    while (event.ok()) {
      note(*event);
      event = log_.read(absl::ZeroDuration());
    }
    if (!absl::IsDeadlineExceeded(event.status())) return while_joining(event.status());
    GRADWIRE_RETURN_IF_ERROR(hear_refusal());
    const auto free = [&] { return log_.roster().check(entry_).what == What::kJoined && !comes_late(); };
    if (absl::Status appended = append(line, std::max(left_until(deadline_), GroupLog::kAppend), free);
        !appended.ok()) {
      return while_joining(appended);
    }
    if (log_.roster().status(entry_.worker.incarnation) == Roster::Status::kMember) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(make_way(log_.roster().check(entry_)));
  }
}

// Another worker is in the way. It stays if it lives; if it is dead, that is written first, then the place is
// free.
absl::Status Joining::make_way(const Roster::Change& refused) {
  const Worker& other = refused.worker;
  std::string conflict;
  switch (refused.what) {
    case What::kOtherWorldSize:
      conflict = absl::StrCat("worker \"", entry_.worker.name, "\" was started with world size ",
                              options_.world_size, ", but the job has ", refused.world_size,
                              ": start all workers with the same");
      break;
    case What::kIdTaken:
      conflict = absl::StrCat("rank ", other.id, " is taken by worker \"", other.name, "\": worker \"",
                              entry_.worker.name, "\" needs another rank");
      break;
    case What::kNameTaken:
      conflict = absl::StrCat("the worker name \"", entry_.worker.name, "\" is taken by rank ", other.id,
                              ": names must be unique");
      break;
    default:
      return absl::OkStatus();  // Gone meanwhile.
  }
  Life life = options_.probe(records_[other.incarnation],
                             std::min(kTimeout, std::max(left_until(deadline_), GroupLog::kAgain)));
  // A member that is refused is about to leave.
  if (life == Life::kAlive && log_.formation().is_refused(other.incarnation)) life = Life::kUnknown;
  if (life == Life::kAlive) return refuse(conflict);
  if (life == Life::kDead) {
    const auto wanted = [&] { return log_.roster().status(other.incarnation) == Roster::Status::kMember; };
    return while_joining(append(
        death_line(other, entry_.worker, "a worker that took its place found nobody where it had listened"),
        std::max(left_until(deadline_), GroupLog::kAppend), wanted));
  }
  // The others may agree on it meanwhile.
  absl::StatusOr<GroupLog::Event> event = log_.read(std::min(GroupLog::kAgain, left_until(deadline_)));
  if (event.ok()) {
    note(*event);
  } else if (!absl::IsDeadlineExceeded(event.status())) {
    return while_joining(event.status());
  } else if (left_until(deadline_) == absl::ZeroDuration()) {
    return absl::DeadlineExceededError(
        absl::StrCat(conflict, "; whether that worker still lives could not be found out within ",
                     absl::FormatDuration(options_.timeout)));
  }
  return absl::OkStatus();
}

absl::Status Joining::refuse(const std::string& conflict) {
  const absl::Status refused = absl::InvalidArgumentError(conflict);
  proto::LogLine line;
  line.mutable_refusal()->set_incarnation(entry_.worker.incarnation);
  line.mutable_refusal()->set_reason(conflict);
  line.mutable_refusal()->set_id(entry_.worker.id);
  line.mutable_refusal()->set_time(unix_seconds());
  const auto concerns_all = [&] {
    return log_.formation().is_forming(log_.roster()) && log_.roster().check(entry_).what != What::kJoined;
  };
  const absl::Status appended = append(line, GroupLog::kAppend, concerns_all);
  if (appended.ok() && refusal_.incarnation() == entry_.worker.incarnation) wait_until_heard();
  return refused;
}

bool Joining::comes_late() const {
  const int64_t age = unix_seconds() - refusal_.time();
  return options_.world_size > 0 && log_.formation().comes_late(entry_.worker.id) &&
         std::abs(age) <= absl::ToInt64Seconds(kToldFor);
}

absl::Status Joining::hear_refusal() {
  if (!comes_late()) return absl::OkStatus();
  proto::LogLine line;
  line.mutable_refusal()->set_incarnation(refusal_.incarnation());
  line.mutable_refusal()->set_id(entry_.worker.id);
  if (absl::Status appended = append(line, GroupLog::kAppend, [this] { return comes_late(); });
      !appended.ok()) {
    return while_joining(appended);
  }
  if (!log_.formation().has_failed()) return absl::OkStatus();  // Others have begun anew meanwhile.
  const absl::Status late = cannot_form(refusal_.reason());
  wait_until_heard();
  return late;
}

void Joining::wait_until_heard() {
  const absl::Time until = Clock::system().now() + kToBeHeard;
  while (log_.formation().refused() > 0 && left_until(until) > absl::ZeroDuration()) {
    if (absl::StatusOr<GroupLog::Event> event = log_.read(left_until(until)); event.ok()) {
      note(*event);
    } else if (!absl::IsInvalidArgument(event.status())) {
      return;
    }
  }
}

absl::Status Joining::wait_for_all() {
  const auto present = [this] {
    return static_cast<int>(log_.roster().members().size() - log_.formation().refused());
  };
  while (present() < options_.world_size) {
    absl::StatusOr<GroupLog::Event> event = log_.read(left_until(deadline_));
    if (event.ok()) {
      note(*event);
      if (log_.formation().is_refused(entry_.worker.incarnation)) {
        const absl::Status refused = cannot_form(refusal_.reason());
        (void)log_.leave(entry_.worker.incarnation);
        entered_ = false;
        wait_until_heard();
        return refused;
      }
      if (log_.roster().status(entry_.worker.incarnation) != Roster::Status::kMember) {
        return absl::AbortedError(absl::StrCat("worker \"", entry_.worker.name, "\" was declared dead by \"",
                                               event->by, "\" while it joined: ", event->reason));
      }
      continue;
    }
    if (!store::is_wait_timeout(event.status())) return while_joining(event.status());
    std::vector<int> missing;
    for (int id = 0; id < options_.world_size; ++id) {
      const auto member = log_.roster().members().find(id);
      // A refused member that has not left yet has no part in this group either.
      if (member == log_.roster().members().end() || log_.formation().is_refused(member->second.incarnation))
        missing.push_back(id);
    }
    return absl::DeadlineExceededError(
        absl::StrCat("rank", missing.size() == 1 ? " " : "s ", absl::StrJoin(missing, ", "), " of ",
                     options_.world_size, " did not join within ", absl::FormatDuration(options_.timeout),
                     " (", log_.store().description(), ")"));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::rpc
