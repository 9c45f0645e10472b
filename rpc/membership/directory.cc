#include "gradwire/rpc/membership/directory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log.h"

namespace gradwire::rpc {

using What = Roster::Change::What;

namespace {

// When a line is waited for, how long at a time. A store that hangs holds up stop() for that long, and for as
// long as its client waits for an answer.
constexpr absl::Duration kLook = absl::Seconds(2);
// How long a store that has been silent is given to answer.
constexpr absl::Duration kAsk = absl::Seconds(1);

// A call that the store did not answer in time.
bool is_unanswered(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) && !store::is_wait_timeout(status);
}

}  // namespace

Directory::~Directory() { stop(); }

absl::StatusOr<Directory::Group> Directory::join(const Worker& self, int world_size,
                                                 proto::WorkerRecord record, absl::Duration timeout,
                                                 const Probe& probe) {
  self_ = self;
  Joining joining(log_, {self, world_size, timeout, probe});
  absl::StatusOr<Group> group = joining.run(std::move(record));
  if (group.ok()) self_ = group->self;
  MutexLock lock(mutex_);
  entered_ = joining.entered();
  return group;
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
  if (!stopping_) changed_.wait_for(mutex_, GroupLog::kAgain);
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
  deaths_.push_back(death_line(worker, self_, reason));
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
      // A worker that leaves need not report a death: the others notice it.
      leave = leaving_ && !left_;
      if (!leave && (stopping_ || deaths_.empty())) return;
      if (!leave) {
        line = std::move(deaths_.front());
        deaths_.pop_front();
      }
    }
    if (leave) {
      absl::Status status = writer_log_->leave(self_.incarnation);
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
      status = writer_log_->append(line, GroupLog::kAppend, ignore, wanted);
    }
    if (!status.ok()) {
      // The store is gone, for a while or for good.
      MutexLock lock(mutex_);
      if (stopping_ || leaving_) continue;
      deaths_.push_back(std::move(line));
      changed_.wait_for(mutex_, GroupLog::kAgain);
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
    return first ? log_.leave(self_.incarnation) : absl::OkStatus();
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
