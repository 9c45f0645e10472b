#include "gradwire/rpc/membership/directory.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/start_thread.h"

// Two threads follow the log. The reader waits for the next line and reports it. The writer appends deaths
// and this worker's leave. A wait for a line may take seconds, so the two do not share a GroupLog: each reads
// the log for itself. They share only the members that mutex_ guards.
namespace gradwire::rpc {

using What = Roster::Change::What;

namespace {

// Maximum duration of one wait for a line. A store that hangs delays stop() by that time, plus the time for
// which the store's client waits for an answer.
constexpr absl::Duration kReadTimeout = absl::Seconds(2);
// Time that a silent store has to answer a check.
constexpr absl::Duration kCheckTimeout = absl::Seconds(1);

// Whether the store did not answer a call in time. A wait that ended without a line is an answer.
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

// leave() waits for the writer if there is a reader, so the reader is started last. Without a reader, stop()
// ends the writer.
absl::Status Directory::follow(Listener& listener) {
  MutexLock lock(mutex_);
  if (stopping_ || reader_.joinable()) return absl::OkStatus();
  if (!writer_.joinable()) {
    writer_log_ = std::make_unique<GroupLog>(log_);
    GRADWIRE_ASSIGN_OR_RETURN(writer_, start_thread("group-writer", [this] { run_writer(); }));
  }
  GRADWIRE_ASSIGN_OR_RETURN(reader_,
                            start_thread("group-reader", [this, &listener] { run_reader(listener); }));
  return absl::OkStatus();
}

// A store that was lost may come back, so the reader does not give up. It ends at stop(), when it reads this
// worker's own end, or when the store has lost the log: workers that came since may have formed another group
// there, and the members of two groups cannot be merged.
void Directory::run_reader(Listener& listener) {
  StoreSilence silence(store_lost_after_);
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    // read_next() updates `silence`. Comparing the state before and after finds the loss and the return of
    // the store.
    const bool was_lost = silence.lost();
    absl::StatusOr<GroupLog::Event> event = read_next(silence);
    if (absl::IsAborted(event.status())) {
      report_replaced(listener, event.status());
      return;
    }
    if (silence.lost()) {
      const absl::Status silent = absl::UnavailableError(
          absl::StrCat(store().description(), " has not answered for ",
                       absl::FormatDuration(absl::Trunc(silence.duration(), absl::Seconds(1)))));
      report_lost(listener, is_unanswered(event.status()) ? silent : event.status(), !was_lost);
      continue;
    }
    if (was_lost) listener.on_store_back();
    if (event.ok()) {
      if (!report(listener, *event)) return;
    } else if (absl::IsInvalidArgument(event.status())) {
      log(LogLevel::kWarning, "worker \"", self_.name, "\": ", event.status().message());
    }
  }
}

absl::StatusOr<GroupLog::Event> Directory::read_next(StoreSilence& silence) {
  const absl::Time began = Clock::system().now();
  absl::StatusOr<GroupLog::Event> event = GroupLog::Event();
  try {
    if (silence.duration() == absl::ZeroDuration()) {
      event = log_.read(kReadTimeout);
    } else if (absl::Status checked = log_.check_store(kCheckTimeout); !checked.ok()) {
      // A wait for a line would take longer to find out whether the store answers.
      event = std::move(checked);
    }
  } catch (...) {
    // Without memory nothing is learnt about the store.
    return caught("reading the group's log");
  }
  // A wait that ended without a line and a malformed line are answers of the store, too.
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

void Directory::report_lost(Listener& listener, const absl::Status& reason, bool is_first) {
  bool leaving = false;
  {
    MutexLock lock(mutex_);
    leaving = leaving_;
  }
  // While this worker leaves, the end of the store is expected: its host may end before this worker does.
  if (is_first && !leaving) {
    log(LogLevel::kWarning, "worker \"", self_.name,
        "\" cannot reach the store; no worker can join until it is back: ", reason.message());
  }
  listener.on_store_lost(reason, /*for_good=*/false);
  MutexLock lock(mutex_);
  if (!stopping_) changed_.wait_for(mutex_, GroupLog::kRetryDelay);
}

void Directory::report_replaced(Listener& listener, const absl::Status& failure) {
  const absl::Status reason = store_failure_of_member(failure);
  bool leaving = false;
  {
    MutexLock lock(mutex_);
    leaving = leaving_;
    replaced_ = true;
    if (!left_) leave_status_ = reason;
    changed_.notify_all();
  }
  if (!leaving) log(LogLevel::kError, "worker \"", self_.name, "\": ", reason.message());
  listener.on_store_lost(reason, /*for_good=*/true);
}

bool Directory::report(Listener& listener, const GroupLog::Event& event) {
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

void Directory::declare_dead(const Worker& worker, Knowledge knowledge, const std::string& reason) {
  MutexLock lock(mutex_);
  if (stopping_ || leaving_ || replaced_) return;
  // The failure detector accuses a silent worker once per round. One line is enough.
  for (Death& death : deaths_) {
    if (death.line.death().incarnation() != worker.incarnation) continue;
    death.withdrawn = false;
    if (knowledge == Knowledge::kProof) death.knowledge = knowledge;
    return;
  }
  deaths_.push_back({death_line(worker, self_, reason), knowledge});
  changed_.notify_all();
}

void Directory::answered(uint64_t incarnation) {
  MutexLock lock(mutex_);
  for (Death& death : deaths_) {
    if (death.line.death().incarnation() == incarnation && death.knowledge == Knowledge::kSilence)
      death.withdrawn = true;
  }
}

// Appends one line after the other:
//   1. Wait for a death to declare, for leave(), or for stop(). If the store has lost the log, end.
//   2. leave() comes before all deaths, and is the last line of this worker.
//   3. Before a death, read the log to its end, so that the decision is made on what the group knows.
//   4. Append the death, unless the log says meanwhile that one of the two workers is not a member, or the
//      worker has answered.
//   5. If the store has failed, move the death to the end and try again later. A loss must reach the log
//      finally: until then what is kept because of the dead worker is not freed.
void Directory::run_writer() {
  const auto ignore = [](const GroupLog::Event&) {};
  while (true) {
    proto::LogLine line;
    bool leave = false;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && !replaced_ && deaths_.empty() && !leaving_) changed_.wait(mutex_);
      if (replaced_) return;
      // A worker that leaves need not report a death: the others notice it.
      leave = leaving_ && !left_;
      if (!leave && (stopping_ || deaths_.empty())) return;
      if (!leave) {
        if (deaths_.front().withdrawn) {
          deaths_.pop_front();
          continue;
        }
        line = deaths_.front().line;
      }
    }
    if (leave) {
      absl::Status status = writer_log_->leave(self_.incarnation);
      MutexLock lock(mutex_);
      // Also after an error: leave() returns the status to its caller.
      left_ = true;
      leave_status_ = std::move(status);
      changed_.notify_all();
      return;
    }
    log(LogLevel::kInfo, "worker \"", self_.name, "\" declares a worker dead: ", line.death().reason());
    // Read the log to its end: the worker that is declared dead may have joined since the last read.
    absl::Status status;
    do {
      status = writer_log_->read(absl::ZeroDuration()).status();
    } while (status.ok());
    const uint64_t dead = line.death().incarnation();
    const auto is = [this](uint64_t incarnation, Roster::Status status) {
      return writer_log_->roster().status(incarnation) == status;
    };
    const auto wanted = [&] {
      MutexLock lock(mutex_);
      return !deaths_.front().withdrawn && is(self_.incarnation, Roster::Status::kMember) &&
             is(dead, Roster::Status::kMember);
    };
    if (is(self_.incarnation, Roster::Status::kMember) && is(dead, Roster::Status::kUnknown)) {
      // The worker has joined, but this reader does not see its line because the store failed.
      status = absl::UnavailableError("cannot read the group's log");
    } else if (!is_unanswered(status)) {
      // After a call without an answer this thread makes no second call, because leave() waits for this
      // thread.
      status = writer_log_->append(line, GroupLog::kAppend, ignore, wanted);
    }
    // Only this thread removes deaths, so the first one is the one above.
    MutexLock lock(mutex_);
    Death death = std::move(deaths_.front());
    deaths_.pop_front();
    if (status.ok() || stopping_ || leaving_) continue;
    // The store has failed, perhaps permanently: keep the line and try again later.
    deaths_.push_back(std::move(death));
    changed_.wait_for(mutex_, GroupLog::kRetryDelay);
  }
}

absl::Status Directory::leave() {
  mutex_.lock();
  const bool entered = entered_;
  const bool follows = reader_.joinable();
  // From here on the writer declares no deaths.
  const bool first = !std::exchange(leaving_, true);
  changed_.notify_all();
  mutex_.unlock();
  if (!entered) return absl::OkStatus();
  if (!follows) {
    // join() failed after it had entered.
    return first ? log_.leave(self_.incarnation) : absl::OkStatus();
  }
  MutexLock lock(mutex_);
  // The writer appends the line, so that only one thread uses its log.
  while (!left_ && !stopping_ && !replaced_) changed_.wait(mutex_);
  return leave_status_;
}

void Directory::stop() {
  assert(!on_duty());
  std::thread reader, writer;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    reader.swap(reader_);
    writer.swap(writer_);
    changed_.notify_all();
  }
  // Joined without the lock, which both threads need in order to end.
  if (reader.joinable()) reader.join();
  if (writer.joinable()) writer.join();
}

}  // namespace gradwire::rpc
