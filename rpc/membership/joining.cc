#include "gradwire/rpc/membership/joining.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {

using What = Roster::Change::What;

namespace {

// Time that another worker has to show that it is alive.
constexpr absl::Duration kProbeTimeout = absl::Seconds(2);
// Time that refused members have to read the reason and to leave.
constexpr absl::Duration kRefusedLeaveTimeout = absl::Seconds(10);
// Time for which a refusal is reported to workers that come late. A worker that comes after that belongs to
// another attempt.
constexpr absl::Duration kRefusalLifetime = absl::Seconds(30);

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
  // 1. Append this worker's line, once no other member conflicts with it.
  GRADWIRE_RETURN_IF_ERROR(enter(line));
  // 2. Read on until the group is complete.
  GRADWIRE_RETURN_IF_ERROR(wait_for_all());
  // 3. Return the members.
  Group group{entry_.worker, {}, std::move(gone_)};
  for (const auto& [id, worker] : log_.roster().members()) {
    group.members.push_back({worker, records_[worker.incarnation]});
    group.members.back().record.set_id(id);
  }
  return group;
}

void Joining::record_event(const GroupLog::Event& event) {
  if (event.refusal.has_value()) refusal_ = *event.refusal;
  const Worker& worker = event.change.worker;
  switch (event.change.what) {
    case What::kJoined:
      // A worker has joined after the refusal, so the group forms anew.
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
    // Read all present lines first, so that an append that cannot succeed is not attempted.
    absl::StatusOr<GroupLog::Event> event = log_.read(absl::ZeroDuration());
    while (event.ok()) {
      record_event(*event);
      event = log_.read(absl::ZeroDuration());
    }
    if (!absl::IsDeadlineExceeded(event.status())) return while_joining(event.status());
    GRADWIRE_RETURN_IF_ERROR(acknowledge_refusal());
    // The log calls this before each attempt to append, after it has applied the lines that others appended.
    const auto free = [&] { return log_.roster().check(entry_).what == What::kJoined && !is_late(); };
    if (absl::Status appended = append(line, std::max(left_until(deadline_), GroupLog::kAppend), free);
        !appended.ok()) {
      return while_joining(appended);
    }
    // The append also ends without a line when `free` is false. Then another worker is in the way.
    if (log_.roster().status(entry_.worker.incarnation) == Roster::Status::kMember) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(resolve_conflict(log_.roster().check(entry_)));
  }
}

// Another member has the name or the id. If it is alive, this worker is refused. If it is dead, its death is
// appended first, which frees the name and the id. If that is unknown, this worker waits until the group
// decides.
absl::Status Joining::resolve_conflict(const Roster::Change& refused) {
  const Worker& other = refused.worker;
  std::string conflict;
  switch (refused.what) {
    case What::kOtherWorldSize:
      conflict = absl::StrCat("world size mismatch: worker \"", entry_.worker.name, "\" was started with ",
                              options_.world_size, ", the job has ", refused.world_size,
                              "; start all workers with the same world size");
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
      return absl::OkStatus();  // The conflict is gone.
  }
  // The log alone cannot decide: the other process may have ended without a leave, and a process that starts
  // again with the same name must be able to join.
  Life life = options_.probe(records_[other.incarnation],
                             std::min(kProbeTimeout, std::max(left_until(deadline_), GroupLog::kRetryDelay)));
  // A member that is refused is about to leave.
  if (life == Life::kAlive && log_.formation().is_refused(other.incarnation)) life = Life::kUnknown;
  if (life == Life::kAlive) return refuse(conflict);
  if (life == Life::kDead) {
    const auto wanted = [&] { return log_.roster().status(other.incarnation) == Roster::Status::kMember; };
    // enter() then tries again. Two workers that want the same place may both append the death: the second
    // line has no effect.
    return while_joining(append(
        death_line(other, entry_.worker,
                   "a worker with the same name or rank joins, and no process listens at its addresses"),
        std::max(left_until(deadline_), GroupLog::kAppend), wanted));
  }
  // Unknown: wait a little, because the group may agree on the worker's death meanwhile.
  absl::StatusOr<GroupLog::Event> event = log_.read(std::min(GroupLog::kRetryDelay, left_until(deadline_)));
  if (event.ok()) {
    record_event(*event);
  } else if (!absl::IsDeadlineExceeded(event.status())) {
    return while_joining(event.status());
  } else if (left_until(deadline_) == absl::ZeroDuration()) {
    return absl::DeadlineExceededError(
        absl::StrCat(conflict, "; could not find out whether that worker is alive within ",
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
  // The refusal matters to others only while the group forms. Otherwise this worker fails alone.
  const auto concerns_all = [&] {
    return log_.formation().is_forming(log_.roster()) && log_.roster().check(entry_).what != What::kJoined;
  };
  const absl::Status appended = append(line, GroupLog::kAppend, concerns_all);
  // The refusal of this worker is in the log, so the others fail because of it. Give them time to read it.
  if (appended.ok() && refusal_.incarnation() == entry_.worker.incarnation) wait_until_refused_leave();
  return refused;
}

bool Joining::is_late() const {
  // The clocks of two hosts differ, so the refusal may seem to be of the future.
  const int64_t age = unix_seconds() - refusal_.time();
  return options_.world_size > 0 && log_.formation().is_late(entry_.worker.id) &&
         std::abs(age) <= absl::ToInt64Seconds(kRefusalLifetime);
}

// The problem: a program starts again after a failed start, in the same store. A worker that comes late to
// the failed start must fail with the others, but a worker of the new start must not. The two cannot be
// distinguished. So each rank learns the reason at most once: the line that this function appends says that
// it knows. The next worker with this rank starts a new group.
absl::Status Joining::acknowledge_refusal() {
  if (!is_late()) return absl::OkStatus();
  proto::LogLine line;
  line.mutable_refusal()->set_incarnation(refusal_.incarnation());
  line.mutable_refusal()->set_id(entry_.worker.id);
  if (absl::Status appended = append(line, GroupLog::kAppend, [this] { return is_late(); }); !appended.ok()) {
    return while_joining(appended);
  }
  if (!log_.formation().has_failed())
    return absl::OkStatus();  // Another worker has joined: the group forms anew.
  const absl::Status late = cannot_form(refusal_.reason());
  wait_until_refused_leave();
  return late;
}

void Joining::wait_until_refused_leave() {
  const absl::Time until = Clock::system().now() + kRefusedLeaveTimeout;
  while (log_.formation().refused() > 0 && left_until(until) > absl::ZeroDuration()) {
    if (absl::StatusOr<GroupLog::Event> event = log_.read(left_until(until)); event.ok()) {
      record_event(*event);
    } else if (!absl::IsInvalidArgument(event.status())) {
      return;
    }
  }
}

absl::Status Joining::wait_for_all() {
  const auto present = [this] {
    return static_cast<int>(log_.roster().members().size() - log_.formation().refused());
  };
  Progress progress(options_.progress);
  while (present() < options_.world_size) {
    progress.update([this] { return describe_wait(); });
    absl::StatusOr<GroupLog::Event> event = log_.read(std::min(left_until(deadline_), progress.until_next()));
    if (event.ok()) {
      record_event(*event);
      if (log_.formation().is_refused(entry_.worker.incarnation)) {
        const absl::Status refused = cannot_form(refusal_.reason());
        // This does not close the log, even if this worker is the last member: workers that come late must
        // read the reason.
        (void)log_.leave(entry_.worker.incarnation);
        entered_ = false;
        wait_until_refused_leave();
        return refused;
      }
      if (log_.roster().status(entry_.worker.incarnation) != Roster::Status::kMember) {
        return absl::AbortedError(absl::StrCat("worker \"", entry_.worker.name, "\" was declared dead by \"",
                                               event->by, "\" while it joined: ", event->reason));
      }
      continue;
    }
    if (!store::is_wait_timeout(event.status())) return while_joining(event.status());
    if (left_until(deadline_) > absl::ZeroDuration()) continue;
    const std::vector<int> absent = missing();
    return absl::DeadlineExceededError(
        absl::StrCat("rank", absent.size() == 1 ? " " : "s ", absl::StrJoin(absent, ", "), " of ",
                     options_.world_size, " did not join within ", absl::FormatDuration(options_.timeout),
                     " (", log_.store().description(), ")"));
  }
  progress.finish("all workers have joined");
  return absl::OkStatus();
}

std::vector<int> Joining::missing() const {
  std::vector<int> ids;
  for (int id = 0; id < options_.world_size; ++id) {
    const auto member = log_.roster().members().find(id);
    // A refused member that has not left yet has no part in this group either.
    if (member == log_.roster().members().end() || log_.formation().is_refused(member->second.incarnation))
      ids.push_back(id);
  }
  return ids;
}

std::optional<ProgressState> Joining::describe_wait() const {
  constexpr std::size_t kShown = 16;
  const std::vector<int> absent = missing();
  const auto& members = log_.roster().members();
  const bool first = !members.empty() && members.begin()->second.incarnation == entry_.worker.incarnation;
  if (absent.empty() || (!first && !options_.progress.output->can_move())) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& [id, worker] : members) {
    if (names.size() < kShown) names.push_back(absl::StrCat("\"", worker.name, "\""));
  }
  const std::size_t shown = std::min(absent.size(), kShown);
  const int joined = options_.world_size - static_cast<int>(absent.size());
  return ProgressState{
      .text = absl::StrCat(
          "worker \"", entry_.worker.name, "\" waits for ", absent.size() == 1 ? "rank " : "ranks ",
          absl::StrJoin(absent.begin(), absent.begin() + static_cast<int64_t>(shown), ", "),
          absent.size() > shown ? absl::StrCat(" and ", absent.size() - shown, " more") : "", "; ", joined,
          " of ", options_.world_size, " workers have joined: ", absl::StrJoin(names, ", "),
          members.size() > names.size() ? ", ..." : ""),
      .done = joined,
      .total = options_.world_size};
}

}  // namespace gradwire::rpc
