#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "rpc/agent_impl.h"

// How an agent ends.
//
// Gracefully, all members agree first, in rounds over the store. In each round a member waits until nothing of its own
// is under way, then writes how many calls it has ever sent, then reads what the others wrote in the same round. The
// group may stop when two rounds in a row say the same and all were idle: at the moment when the last report of the
// first round was written nothing can have been under way, since whoever had sent it would not have been idle before,
// or would have counted it after. Everybody reads the same reports and so everybody decides alike. While it waits for a
// report, a member makes sure that the one who owes it lives.
namespace gradwire::rpc {
namespace {

constexpr absl::Duration kIdleCheck = absl::Milliseconds(1);
constexpr absl::Duration kLivenessCheck = absl::Seconds(1);
constexpr absl::Duration kFlush = absl::Seconds(2);
constexpr absl::Duration kLastRead = absl::Seconds(5);

}  // namespace

absl::Status AgentImpl::shut_down(bool graceful, absl::Duration timeout) {
  if (Executor::current() == executor.get() && executor != nullptr) {
    return absl::FailedPreconditionError("shutdown must not be called from a handler: it waits for the handlers");
  }
  MutexLock one_at_a_time(shutdown_mutex_);
  if (shut_down_) return absl::OkStatus();
  absl::Status status;
  if (graceful && directory != nullptr) {
    const absl::Time deadline = timeout == absl::InfiniteDuration() || timeout <= absl::ZeroDuration()
                                    ? absl::InfiniteFuture()
                                    : Clock::system().now() + timeout;
    status = agree_to_stop(deadline);
  }
  shut_down_ = true;
  stop(absl::CancelledError(absl::StrCat("worker \"", self.name, "\" has shut down")), graceful ? kFlush : absl::Milliseconds(200));
  return status;
}

absl::Status AgentImpl::agree_to_stop(absl::Time deadline) {
  // The incarnations tell this group from earlier ones in the same store.
  uint64_t group = 0;
  const std::vector<Worker> members = peers->workers();
  for (const Worker& worker : members) group ^= worker.incarnation;
  const std::string prefix = absl::StrCat("shutdown/", absl::Hex(group), "/");

  uint64_t previous_total = 0;
  bool previous_quiet = false;
  for (int round = 0;; ++round) {
    while (!idle()) {
      if (Clock::system().now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("worker \"", self.name,
                                                        "\" still has calls under way: the graceful shutdown's time is up"));
      }
      absl::SleepFor(kIdleCheck);
    }
    proto::ShutdownReport mine;
    mine.set_sent(calls_made.load());
    mine.set_idle(idle());
    const std::string key = absl::StrCat(prefix, round, "/");
    GRADWIRE_RETURN_IF_ERROR(directory->store().try_set(absl::StrCat(key, self.id), mine.SerializeAsString()));
    uint64_t sent = 0;
    bool quiet = true;
    for (const Worker& worker : members) {
      GRADWIRE_ASSIGN_OR_RETURN(proto::ShutdownReport report,
                                read_report(absl::StrCat(key, worker.id), worker, deadline));
      sent += report.sent();
      quiet = quiet && report.idle();
    }
    if (quiet && previous_quiet && sent == previous_total) break;
    previous_quiet = quiet;
    previous_total = sent;
  }

  // Rank 0 may host the store: it stays until the others have read their last reports.
  const std::string done = absl::StrCat(prefix, "done/");
  GRADWIRE_RETURN_IF_ERROR(directory->store().try_set(absl::StrCat(done, self.id), ""));
  if (self.id == 0) {
    std::vector<std::string> keys;
    for (const Worker& worker : members) keys.push_back(absl::StrCat(done, worker.id));
    (void)directory->store().try_wait(keys, kLastRead);
  }
  return absl::OkStatus();
}

absl::StatusOr<proto::ShutdownReport> AgentImpl::read_report(const std::string& key, const Worker& worker,
                                                             absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - Clock::system().now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("worker \"", worker.name,
                                                      "\" did not call shutdown in the time that worker \"", self.name,
                                                      "\" gave it"));
    }
    absl::StatusOr<std::string> value = directory->store().try_get(key, std::min(left, kLivenessCheck));
    if (value.ok()) {
      proto::ShutdownReport report;
      if (!report.ParseFromString(*value)) return absl::InvalidArgumentError("the store holds no shutdown report");
      return report;
    }
    if (!absl::IsDeadlineExceeded(value.status())) {
      return with_context(value.status(), "shutting down gracefully");
    }
    // Silent so far: does it live? A dead one shows as lost soon after it fails to answer.
    (void)agent.call_service(worker, kPing, "", nullptr, {Clock::system().now() + kLivenessCheck, false});
    if (absl::Status alive = peers->status(worker); !alive.ok()) {
      return absl::UnavailableError(absl::StrCat("worker \"", worker.name, "\" ended before the graceful shutdown: ",
                                                 alive.message()));
    }
  }
}

void AgentImpl::stop(const absl::Status& reason, absl::Duration flush) {
  const absl::Status closed =
      absl::FailedPreconditionError(absl::StrCat("worker \"", self.name, "\" has been shut down"));
  {
    MutexLock lock(mutex_);
    closed_ = closed;
  }
  server->stop(reason);
  for (const auto& extension : extensions) extension->shutdown(closed);
  for (PendingCall& call : pending.take_all()) complete(std::move(call), closed);
  if (directory != nullptr && self.id >= 0) (void)directory->leave(self);
  peers->shutdown(reason, flush);
  rrefs->shutdown(closed);
  // Handlers that run now find every call refused and every wait ended, so the pool drains.
  executor->shutdown();
  timers->shutdown();
}

}  // namespace gradwire::rpc
