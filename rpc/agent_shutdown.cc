#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "rpc/agent_impl.h"
#include "rpc/codec_containers.h"

// How an agent ends.
//
// Gracefully, all members agree first, in rounds over the store. In each round a member waits until nothing
// of its own is under way, then writes how many calls it has ever sent, then reads what the others wrote in
// the same round. The group may stop when two rounds in a row say the same and all were idle: at the moment
// when the last report of the first round was written nothing can have been under way, since whoever had sent
// it would not have been idle before, or would have counted it after. Everybody reads the same reports and so
// everybody decides alike. While it waits for a report, a member makes sure that the one who owes it lives.
namespace gradwire::rpc {
namespace {

constexpr absl::Duration kIdleCheck = absl::Milliseconds(1);
constexpr absl::Duration kLivenessCheck = absl::Seconds(1);
constexpr absl::Duration kFlush = absl::Seconds(2);
constexpr absl::Duration kHastyFlush = absl::Milliseconds(200);
constexpr absl::Duration kLastRead = absl::Seconds(5);

}  // namespace

absl::Status AgentImpl::shut_down(bool graceful, absl::Duration timeout) {
  if (Executor::current() == executor.get() && executor != nullptr) {
    return absl::FailedPreconditionError(
        "shutdown must not be called from a handler: it waits for the handlers");
  }
  if (!graceful || directory == nullptr) {
    // Also ends a graceful shutdown that somebody else waits in.
    stop(absl::CancelledError(absl::StrCat("worker \"", self.name, "\" has shut down")), kHastyFlush);
    return how_it_ended();
  }
  const absl::Time deadline = timeout == absl::InfiniteDuration() || timeout <= absl::ZeroDuration()
                                  ? absl::InfiniteFuture()
                                  : Clock::system().now() + timeout;
  // Whoever comes second returns with the first.
  shutdown_mutex_.lock();
  while (shutting_down_) shutdown_changed_.wait(shutdown_mutex_);
  if (shut_down_) {
    shutdown_mutex_.unlock();
    return absl::OkStatus();
  }
  shutting_down_ = true;
  shutdown_mutex_.unlock();

  absl::Status status = accepts_calls();
  if (status.ok()) {
    status = world_size == 0 ? finish_own_work(deadline) : agree_to_stop(deadline);
  } else {
    status = absl::OkStatus();  // Ended already, not gracefully.
  }
  stop(absl::CancelledError(absl::StrCat("worker \"", self.name, "\" has shut down")), kFlush);
  const absl::Status ended = how_it_ended();
  if (status.ok()) status = ended;

  MutexLock lock(shutdown_mutex_);
  shutting_down_ = false;
  shut_down_ = true;
  shutdown_changed_.notify_all();
  return status;
}

absl::Status AgentImpl::finish_own_work(absl::Time deadline) {
  while (!idle()) {
    GRADWIRE_RETURN_IF_ERROR(accepts_calls());
    if (Clock::system().now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "worker \"", self.name, "\" still has calls under way: the graceful shutdown's time is up"));
    }
    absl::SleepFor(kIdleCheck);
  }
  return absl::OkStatus();
}

absl::Status AgentImpl::agree_to_stop(absl::Time deadline) {
  // The incarnations tell this group from earlier ones in the same store.
  uint64_t group = 0;
  const std::vector<Worker> members = peers->workers();
  for (const Worker& worker : members) group ^= worker.incarnation;
  const std::string prefix = absl::StrCat("shutdown/", absl::Hex(group), "/");
  absl::Status status = agree_in_rounds(prefix, members, deadline);
  if (!status.ok()) return share_failure(prefix, name_the_dead(members, std::move(status)));

  {
    MutexLock lock(membership_mutex_);
    ending_ = true;
  }
  // All have left before anybody returns, so that a new group over the same store meets none of them.
  // Rank 0 may host the store: it stays until the others have come here too.
  (void)directory->leave();
  const std::string done = absl::StrCat(prefix, "done/");
  GRADWIRE_RETURN_IF_ERROR(directory->store().try_set(absl::StrCat(done, self.id), "", kLastRead));
  std::vector<std::string> keys;
  for (const Worker& worker : members) keys.push_back(absl::StrCat(done, worker.id));
  (void)directory->store().try_wait(keys, kLastRead);
  return absl::OkStatus();
}

// When the store went with the worker that hosted it, that worker is what people need to know of.
absl::Status AgentImpl::name_the_dead(const std::vector<Worker>& members, absl::Status status) {
  if (!absl::IsUnavailable(status)) return status;
  const absl::Time deadline = Clock::system().now() + kLivenessCheck;
  for (const Worker& worker : members) {
    (void)agent.call_service(worker, kPing, "", nullptr, {deadline, false});
  }
  while (Clock::system().now() < deadline) {
    for (const Worker& worker : members) {
      if (absl::Status alive = peers->status(worker); !alive.ok()) return ended_early(worker, alive);
    }
    absl::SleepFor(kIdleCheck);
  }
  return status;
}

absl::Status AgentImpl::ended_early(const Worker& worker, const absl::Status& reason) {
  // It is this worker that the others have given up.
  if (absl::IsAborted(reason)) return reason;
  return absl::UnavailableError(
      absl::StrCat("worker \"", worker.name, "\" ended before the graceful shutdown: ", reason.message()));
}

// The first member that fails says why, and the others say the same: the one that ended because of a dead
// worker is not the culprit.
absl::Status AgentImpl::share_failure(const std::string& prefix, absl::Status status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
  proto::StatusValue mine;
  status_to_proto(status, mine);
  auto said = directory->store().try_compare_set(absl::StrCat(prefix, "failed"), "", mine.SerializeAsString(),
                                                 kLivenessCheck);
  proto::StatusValue first;
  if (!said.ok() || !first.ParseFromString(*said)) return status;
  absl::Status shared = status_from_proto(first);
  return shared.ok() ? status : shared;
}

absl::Status AgentImpl::agree_in_rounds(const std::string& prefix, const std::vector<Worker>& members,
                                        absl::Time deadline) {
  uint64_t previous_total = 0;
  bool previous_quiet = false;
  for (int round = 0;; ++round) {
    GRADWIRE_RETURN_IF_ERROR(finish_own_work(deadline));
    proto::ShutdownReport mine;
    mine.set_sent(calls_made.load());
    mine.set_idle(idle());
    const std::string key = absl::StrCat(prefix, round, "/");
    GRADWIRE_RETURN_IF_ERROR(
        directory->store().try_set(absl::StrCat(key, self.id), mine.SerializeAsString(), kLastRead));
    uint64_t sent = 0;
    bool quiet = true;
    for (const Worker& worker : members) {
      GRADWIRE_ASSIGN_OR_RETURN(proto::ShutdownReport report,
                                read_report(absl::StrCat(key, worker.id), worker, deadline));
      sent += report.sent();
      quiet = quiet && report.idle();
    }
    if (quiet && previous_quiet && sent == previous_total) return absl::OkStatus();
    previous_quiet = quiet;
    previous_total = sent;
    // All have written this round, so all have read the one before.
    if (round > 0) {
      (void)directory->store().try_delete_key(absl::StrCat(prefix, round - 1, "/", self.id), kLastRead);
    }
  }
}

absl::StatusOr<proto::ShutdownReport> AgentImpl::read_report(const std::string& key, const Worker& worker,
                                                             absl::Time deadline) {
  while (true) {
    GRADWIRE_RETURN_IF_ERROR(accepts_calls());
    const absl::Duration left = deadline - Clock::system().now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("worker \"", worker.name,
                                                      "\" did not call shutdown in the time that worker \"",
                                                      self.name, "\" gave it"));
    }
    absl::StatusOr<std::string> value = directory->store().try_get(key, std::min(left, kLivenessCheck));
    if (value.ok()) {
      proto::ShutdownReport report;
      if (!report.ParseFromString(*value))
        return absl::InvalidArgumentError("the store holds no shutdown report");
      return report;
    }
    if (!absl::IsDeadlineExceeded(value.status())) {
      return with_context(value.status(), "shutting down gracefully");
    }
    // Silent so far: does it live? A dead one shows as lost soon after it fails to answer.
    (void)agent.call_service(worker, kPing, "", nullptr, {Clock::system().now() + kLivenessCheck, false});
    if (absl::Status alive = peers->status(worker); !alive.ok()) return ended_early(worker, alive);
  }
}

void AgentImpl::stop(const absl::Status& reason, absl::Duration flush) {
  stop_mutex_.lock();
  while (stopping_) stop_changed_.wait(stop_mutex_);
  const bool stopped = std::exchange(stopping_, true) || stopped_;
  stop_mutex_.unlock();
  if (!stopped) stop_everything(reason, flush);
  MutexLock lock(stop_mutex_);
  stopped_ = true;
  stopping_ = false;
  stop_changed_.notify_all();
}

void AgentImpl::stop_everything(const absl::Status& reason, absl::Duration flush) {
  closed_ = true;
  const absl::Status closed = accepts_calls();
  server->stop(reason);
  for (const auto& extension : extensions) extension->shutdown(closed);
  for (PendingCalls::Taken& call : pending.take_all()) complete(std::move(call), closed);
  if (directory != nullptr) {
    (void)directory->leave();
    directory->stop();
  }
  if (changes != nullptr) changes->fail(closed, /*for_good=*/true);
  peers->shutdown(reason, flush);
  rrefs->shutdown(closed);
  absl::Status ended = end_threads();
  MutexLock lock(stop_mutex_);
  ended_ = std::move(ended);
}

}  // namespace gradwire::rpc
