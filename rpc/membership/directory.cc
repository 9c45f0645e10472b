#include "gradwire/rpc/membership/directory.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/wall_clock.h"

namespace gradwire::rpc {

using What = Roster::Change::What;

namespace {

// How long somebody is given to show that it lives.
constexpr absl::Duration kPatience = absl::Seconds(2);
// When a line is waited for, how long at a time. A store that hangs holds up stop() for that long, and for as long as its
// client waits for an answer.
constexpr absl::Duration kLook = absl::Seconds(2);
// How long a store that has been silent is given to answer.
constexpr absl::Duration kAsk = absl::Seconds(1);
constexpr absl::Duration kAgain = absl::Milliseconds(500);
constexpr absl::Duration kAppend = absl::Seconds(5);
constexpr absl::Duration kLeave = absl::Seconds(2);
constexpr absl::Duration kToBeHeard = absl::Seconds(10);
// How long workers that come late are told why the group did not form. Who comes after that is of another attempt.
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

proto::LogLine death_of(const Worker& worker, const Worker& by, const std::string& reason) {
  proto::LogLine line;
  line.mutable_death()->set_incarnation(worker.incarnation);
  line.mutable_death()->set_by(by.incarnation);
  line.mutable_death()->set_by_name(by.name);
  line.mutable_death()->set_reason(reason);
  return line;
}

// A call that the store did not answer in time.
bool is_unanswered(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) && !store::is_wait_timeout(status);
}

// Appends that the worker leaves, if it is a member, and ends the log behind the last.
absl::Status leave_log(GroupLog& log, uint64_t incarnation) {
  proto::LogLine line;
  line.mutable_leave()->set_incarnation(incarnation);
  GRADWIRE_RETURN_IF_ERROR(log.append(
      line, kLeave, [](const GroupLog::Event&) {},
      [&] { return log.roster().status(incarnation) == Roster::Status::kMember; }));
  const bool is_over = log.roster().members().empty() && !log.formation().has_failed();
  return is_over ? log.close(kLeave) : absl::OkStatus();
}

}  // namespace

absl::Status store_failure(const absl::Status& status) {
  return absl::IsAborted(status) ? absl::UnavailableError(status.message()) : status;
}

Directory::~Directory() { stop(); }

absl::StatusOr<Directory::Group> Directory::join(const Worker& self, int world_size,
                                                 proto::WorkerRecord record, absl::Duration timeout,
                                                 const Probe& probe) {
  const absl::Time deadline = Clock::system().now() + timeout;
  self_ = self;
  world_size_ = world_size;
  proto::LogLine line;
  *line.mutable_join()->mutable_worker() = std::move(record);
  line.mutable_join()->set_world_size(world_size);
  GRADWIRE_RETURN_IF_ERROR(enter(line, deadline, timeout, probe));
  GRADWIRE_RETURN_IF_ERROR(wait_for_all(deadline, timeout));
  Group group;
  group.self = self_;
  for (const auto& [id, worker] : log_.roster().members()) {
    WorkerAddress address{worker, records_[worker.incarnation]};
    address.record.set_id(id);
    group.members.push_back(std::move(address));
  }
  group.gone = std::exchange(gone_, {});
  records_.clear();
  return group;
}

void Directory::note(const GroupLog::Event& event) {
  if (event.refusal.has_value()) refusal_ = *event.refusal;
  const Worker& worker = event.change.worker;
  switch (event.change.what) {
    case What::kJoined:
      refusal_.Clear();
      records_[worker.incarnation] = event.record;
      if (worker.incarnation == self_.incarnation) {
        self_ = worker;
        MutexLock lock(mutex_);
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

absl::Status Directory::enter(const proto::LogLine& line, absl::Time deadline, absl::Duration timeout,
                              const Probe& probe) {
  RosterEntry entry;
  entry.worker = self_;
  entry.world_size = world_size_;
  while (true) {
    // What is there already, so that no attempt is made that cannot succeed.
    absl::StatusOr<GroupLog::Event> event = log_.read(absl::ZeroDuration());
    while (event.ok()) {
      note(*event);
      event = log_.read(absl::ZeroDuration());
    }
    if (!absl::IsDeadlineExceeded(event.status())) return while_joining(event.status());
    GRADWIRE_RETURN_IF_ERROR(hear_refusal());
    const auto free = [&] { return log_.roster().check(entry).what == What::kJoined && !comes_late(); };
    if (absl::Status appended = log_.append(
            line, std::max(left_until(deadline), kAppend), [this](const GroupLog::Event& e) { note(e); },
            free);
        !appended.ok()) {
      return while_joining(appended);
    }
    if (log_.roster().status(self_.incarnation) == Roster::Status::kMember) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(make_way(log_.roster().check(entry), deadline, timeout, probe));
  }
}

// Somebody is in the way. He stays if he lives; that he is dead is said first, then the place is free.
absl::Status Directory::make_way(const Roster::Change& refused, absl::Time deadline, absl::Duration timeout,
                                 const Probe& probe) {
  const Worker& other = refused.worker;
  std::string conflict;
  switch (refused.what) {
    case What::kOtherWorldSize:
      conflict = absl::StrCat("worker \"", self_.name, "\" was started with world size ", world_size_,
                              ", but the job has ", refused.world_size, ": start all workers with the same");
      break;
    case What::kIdTaken:
      conflict = absl::StrCat("rank ", other.id, " is taken by worker \"", other.name, "\": worker \"",
                              self_.name, "\" needs another rank");
      break;
    case What::kNameTaken:
      conflict = absl::StrCat("the worker name \"", self_.name, "\" is taken by rank ", other.id,
                              ": names must be unique");
      break;
    default:
      return absl::OkStatus();  // Gone meanwhile.
  }
  Life life = probe(records_[other.incarnation], std::min(kPatience, std::max(left_until(deadline), kAgain)));
  // A member that is refused is about to leave.
  if (life == Life::kAlive && log_.formation().is_refused(other.incarnation)) life = Life::kUnknown;
  if (life == Life::kAlive) {
    RosterEntry entry;
    entry.worker = self_;
    entry.world_size = world_size_;
    return refuse(conflict, entry);
  }
  if (life == Life::kDead) {
    const auto wanted = [&] { return log_.roster().status(other.incarnation) == Roster::Status::kMember; };
    return while_joining(log_.append(
        death_of(other, self_, "a worker that took its place found nobody where it had listened"),
        std::max(left_until(deadline), kAppend), [this](const GroupLog::Event& e) { note(e); }, wanted));
  }
  // The others may agree on it meanwhile.
  absl::StatusOr<GroupLog::Event> event = log_.read(std::min(kAgain, left_until(deadline)));
  if (event.ok()) {
    note(*event);
  } else if (!absl::IsDeadlineExceeded(event.status())) {
    return while_joining(event.status());
  } else if (left_until(deadline) == absl::ZeroDuration()) {
    return absl::DeadlineExceededError(
        absl::StrCat(conflict, "; whether that worker still lives could not be found out within ",
                     absl::FormatDuration(timeout)));
  }
  return absl::OkStatus();
}

absl::Status Directory::refuse(const std::string& conflict, const RosterEntry& entry) {
  const absl::Status refused = absl::InvalidArgumentError(conflict);
  proto::LogLine line;
  line.mutable_refusal()->set_incarnation(self_.incarnation);
  line.mutable_refusal()->set_reason(conflict);
  line.mutable_refusal()->set_id(self_.id);
  line.mutable_refusal()->set_time(unix_seconds());
  const auto concerns_all = [&] {
    return log_.formation().is_forming(log_.roster()) && log_.roster().check(entry).what != What::kJoined;
  };
  const absl::Status appended = log_.append(
      line, kAppend, [this](const GroupLog::Event& event) { note(event); }, concerns_all);
  if (appended.ok() && refusal_.incarnation() == self_.incarnation) wait_until_heard();
  return refused;
}

bool Directory::comes_late() const {
  const int64_t age = unix_seconds() - refusal_.time();
  return world_size_ > 0 && log_.formation().comes_late(self_.id) &&
         std::abs(age) <= absl::ToInt64Seconds(kToldFor);
}

absl::Status Directory::hear_refusal() {
  if (!comes_late()) return absl::OkStatus();
  proto::LogLine line;
  line.mutable_refusal()->set_incarnation(refusal_.incarnation());
  line.mutable_refusal()->set_id(self_.id);
  if (absl::Status appended = log_.append(
          line, kAppend, [this](const GroupLog::Event& event) { note(event); },
          [this] { return comes_late(); });
      !appended.ok()) {
    return while_joining(appended);
  }
  if (!log_.formation().has_failed()) return absl::OkStatus();  // Others have begun anew meanwhile.
  const absl::Status late = cannot_form(refusal_.reason());
  wait_until_heard();
  return late;
}

void Directory::wait_until_heard() {
  const absl::Time until = Clock::system().now() + kToBeHeard;
  while (log_.formation().refused() > 0 && left_until(until) > absl::ZeroDuration()) {
    if (absl::StatusOr<GroupLog::Event> event = log_.read(left_until(until)); event.ok()) {
      note(*event);
    } else if (!absl::IsInvalidArgument(event.status())) {
      return;
    }
  }
}

absl::Status Directory::wait_for_all(absl::Time deadline, absl::Duration timeout) {
  const auto present = [this] {
    return static_cast<int>(log_.roster().members().size() - log_.formation().refused());
  };
  while (present() < world_size_) {
    absl::StatusOr<GroupLog::Event> event = log_.read(left_until(deadline));
    if (event.ok()) {
      note(*event);
      if (log_.formation().is_refused(self_.incarnation)) {
        const absl::Status refused = cannot_form(refusal_.reason());
        (void)leave();
        wait_until_heard();
        return refused;
      }
      if (log_.roster().status(self_.incarnation) != Roster::Status::kMember) {
        return absl::AbortedError(absl::StrCat("worker \"", self_.name, "\" was declared dead by \"",
                                               event->by, "\" while it joined: ", event->reason));
      }
      continue;
    }
    if (!store::is_wait_timeout(event.status())) return while_joining(event.status());
    std::vector<int> missing;
    for (int id = 0; id < world_size_; ++id) {
      const auto member = log_.roster().members().find(id);
      // A refused member that has not left yet has no part in this group either.
      if (member == log_.roster().members().end() || log_.formation().is_refused(member->second.incarnation))
        missing.push_back(id);
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "rank", missing.size() == 1 ? " " : "s ", absl::StrJoin(missing, ", "), " of ", world_size_,
        " did not join within ", absl::FormatDuration(timeout), " (", store().description(), ")"));
  }
  return absl::OkStatus();
}

void Directory::follow(Listener& listener) {
  MutexLock lock(mutex_);
  if (stopping_ || reader_.joinable()) return;
  writer_log_ = std::make_unique<GroupLog>(log_);
  reader_ = std::thread([this, &listener] { run_reader(listener); });
  writer_ = std::thread([this] { run_writer(); });
}

void Directory::run_reader(Listener& listener) {
  StoreSilence silence(store_lost_after_);
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const bool was_lost = silence.lost();
    absl::StatusOr<GroupLog::Event> event = look(silence);
    if (silence.lost()) {
      const absl::Status silent = absl::UnavailableError(
          absl::StrCat(store().description(), " has not answered for ",
                       absl::FormatDuration(absl::Trunc(silence.duration(), absl::Seconds(1)))));
      tell_lost(listener, is_unanswered(event.status()) ? silent : event.status(), !was_lost);
      continue;
    }
    if (was_lost) listener.on_store_back();
    if (event.ok()) {
      if (!tell(listener, *event)) return;
    } else if (absl::IsInvalidArgument(event.status())) {
      log(LogLevel::kWarning, "worker \"", self_.name, "\": ", event.status().message());
    }
  }
}

absl::StatusOr<GroupLog::Event> Directory::look(StoreSilence& silence) {
  const absl::Time began = Clock::system().now();
  absl::StatusOr<GroupLog::Event> event = GroupLog::Event();
  if (silence.duration() == absl::ZeroDuration()) {
    event = log_.read(kLook);
  } else if (absl::Status asked = log_.ask(kAsk); !asked.ok()) {
    // A wait would take longer to find out.
    event = std::move(asked);
  }
  if (!event.ok()) event = store_failure(event.status());
  const absl::Status& status = event.status();
  if (status.ok() || store::is_wait_timeout(status) || absl::IsInvalidArgument(status)) {
    silence.answered();
  } else if (is_unanswered(status)) {
    silence.unanswered(Clock::system().now() - began);
  } else {
    silence.unreachable();
  }
  return event;
}

void Directory::tell_lost(Listener& listener, const absl::Status& reason, bool news) {
  if (news) {
    MutexLock lock(mutex_);
    // Its host may well end before this worker does.
    if (!leaving_) {
      log(LogLevel::kWarning, "worker \"", self_.name,
          "\" cannot reach the store, so that nobody can join: ", reason.message());
    }
  }
  listener.on_store_lost(reason);
  MutexLock lock(mutex_);
  if (!stopping_) changed_.wait_for(mutex_, kAgain);
}

bool Directory::tell(Listener& listener, const GroupLog::Event& event) {
  const Worker& worker = event.change.worker;
  const bool self = worker.incarnation == self_.incarnation;
  switch (event.change.what) {
    case What::kJoined:
      listener.on_joined({worker, event.record});
      return true;
    case What::kLeft:
      if (!self) listener.on_left(worker);
      return !self;
    case What::kDied:
      listener.on_died(worker, event.by, event.reason);
      return !self;
    default:
      return true;
  }
}

void Directory::declare_dead(const Worker& worker, const std::string& reason) {
  MutexLock lock(mutex_);
  if (stopping_ || leaving_) return;
  for (const proto::LogLine& line : deaths_) {
    if (line.death().incarnation() == worker.incarnation) return;
  }
  deaths_.push_back(death_of(worker, self_, reason));
  changed_.notify_all();
}

void Directory::run_writer() {
  const auto ignore = [](const GroupLog::Event&) {};
  while (true) {
    proto::LogLine line;
    bool leave = false;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && deaths_.empty() && !leaving_) changed_.wait(mutex_);
      // A death need not be told by one who leaves: the others notice.
      leave = leaving_ && !left_;
      if (!leave && (stopping_ || deaths_.empty())) return;
      if (!leave) {
        line = std::move(deaths_.front());
        deaths_.pop_front();
      }
    }
    if (leave) {
      absl::Status status = leave_log(*writer_log_, self_.incarnation);
      MutexLock lock(mutex_);
      left_ = true;
      leave_status_ = std::move(status);
      changed_.notify_all();
      return;
    }
    log(LogLevel::kInfo, "worker \"", self_.name, "\" declares a worker dead: ", line.death().reason());
    // The one it is about may have joined since this was read last.
    absl::Status status;
    do {
      status = writer_log_->read(absl::ZeroDuration()).status();
    } while (status.ok());
    const uint64_t dead = line.death().incarnation();
    const auto is = [this](uint64_t incarnation, Roster::Status status) {
      return writer_log_->roster().status(incarnation) == status;
    };
    const auto wanted = [&] {
      return is(self_.incarnation, Roster::Status::kMember) && is(dead, Roster::Status::kMember);
    };
    if (is(self_.incarnation, Roster::Status::kMember) && is(dead, Roster::Status::kUnknown)) {
      // It has joined, and the store did not say so: what follows in the log is unknown.
      status = absl::UnavailableError("the log cannot be read");
    } else if (!is_unanswered(status)) {
      // A store that has not answered is not asked twice: this thread is the one that leave() waits for.
      status = writer_log_->append(line, kAppend, ignore, wanted);
    }
    if (!status.ok()) {
      // The store is gone, for a while or for good.
      MutexLock lock(mutex_);
      if (stopping_ || leaving_) continue;
      deaths_.push_back(std::move(line));
      changed_.wait_for(mutex_, kAgain);
    }
  }
}

absl::Status Directory::leave() {
  mutex_.lock();
  const bool entered = entered_;
  const bool follows = reader_.joinable();
  const bool first = !std::exchange(leaving_, true);
  changed_.notify_all();
  mutex_.unlock();
  if (!entered) return absl::OkStatus();
  if (!follows) {
    // join() failed after it had entered.
    return first ? leave_log(log_, self_.incarnation) : absl::OkStatus();
  }
  MutexLock lock(mutex_);
  while (!left_ && !stopping_) changed_.wait(mutex_);
  return leave_status_;
}

void Directory::stop() {
  std::thread reader, writer;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    reader.swap(reader_);
    writer.swap(writer_);
    changed_.notify_all();
  }
  if (reader.joinable()) reader.join();
  if (writer.joinable()) writer.join();
}

}  // namespace gradwire::rpc
