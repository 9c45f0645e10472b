#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent/agent_impl.h"

// How an agent ends.
//
// Gracefully, all members agree first, in rounds over the store. In each round a member waits until nothing
// of its own is under way, then writes how many calls it has ever sent, then reads what the others wrote in
// the same round. The group may stop when two rounds in a row say the same and all were idle: at the moment
// when the last report of the first round was written nothing can have been under way, since whoever had sent
// it would not have been idle before, or would have counted it after. Everybody reads the same reports and so
// everybody decides alike. While it waits for a report, a member makes sure that the one who owes it lives, and ends when any member
// has been lost.
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
    GracefulEnd end{deadline, StoreSilence(options.heartbeat.dead_after), ShutdownWait(self.name)};
    status = world_size == 0 ? finish_own_work(end) : agree_to_stop(end);
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

absl::Status AgentImpl::finish_own_work(GracefulEnd& end) {
  while (!idle()) {
    GRADWIRE_RETURN_IF_ERROR(accepts_calls());
    if (Clock::system().now() > end.deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "worker \"", self.name, "\" still has calls under way when its graceful shutdown's time is up: ",
          end.wait.list(unfinished())));
    }
    if (end.wait.due()) log(LogLevel::kWarning, end.wait.report(unfinished()));
    absl::SleepFor(kIdleCheck);
  }
  return absl::OkStatus();
}

std::vector<ShutdownWait::Unfinished> AgentImpl::unfinished() const {
  using Kind = ShutdownWait::Unfinished::Kind;
  const auto name_of = [this](uint64_t incarnation) {
    absl::StatusOr<Worker> worker = peers->find_by_incarnation(incarnation);
    return worker.ok() ? worker->name : std::string("unknown");
  };
  std::vector<ShutdownWait::Unfinished> list;
  for (Server::CallUnderWay& call : server->calls_under_way()) {
    list.push_back({Kind::kServed, std::move(call.callee), name_of(call.caller), call.since});
  }
  for (PendingCalls::Waiting& call : pending.waiting()) {
    list.push_back({Kind::kCalled, std::move(call.callee), name_of(call.to), call.since});
  }
  if (!list.empty()) return list;
  // What has no name: messages about references, backward passes, continuations, destructors.
  const absl::Time now = Clock::system().now();
  if (rrefs->messages_under_way() > 0) list.push_back({Kind::kOther, "messages about references", "", now});
  const bool passes = std::any_of(extensions.begin(), extensions.end(),
                                  [](const auto& extension) { return !extension->idle(); });
  if (passes) list.push_back({Kind::kOther, "backward passes or steps of optimizers", "", now});
  if (list.empty())
    list.push_back({Kind::kOther, "continuations of calls, or destructors of values", "", now});
  return list;
}

absl::Status AgentImpl::agree_to_stop(GracefulEnd& end) {
  // The incarnations tell this group from earlier ones in the same store.
  uint64_t group = 0;
  const std::vector<Worker> members = peers->workers();
  for (const Worker& worker : members) group ^= worker.incarnation;
  const std::string prefix = absl::StrCat("shutdown/", absl::Hex(group), "/");
  absl::Status status = agree_in_rounds(prefix, members, end);
  if (!status.ok()) return share_failure(prefix, name_the_dead(members, std::move(status), end));

  {
    MutexLock lock(membership_mutex_);
    ending_ = true;
  }
  // All have left before anybody returns, so that a new group over the same store meets none of them.
  // Rank 0 may host the store: it stays until the others have come here too.
  (void)directory->leave();
  const std::string done = absl::StrCat(prefix, "done/");
  GRADWIRE_RETURN_IF_ERROR(
      store_failure(directory->store().try_set(absl::StrCat(done, self.id), "", kLastRead)));
  std::vector<std::string> keys;
  for (const Worker& worker : members) keys.push_back(absl::StrCat(done, worker.id));
  (void)directory->store().try_wait(keys, kLastRead);
  return absl::OkStatus();
}

// When the store went with the worker that hosted it, that worker is what people need to know of. A killed one shows at
// once, a paused one by its silence: a member that does not answer its ping is waited for until it is dead. The error says
// both: a member may also have left because it cannot reach the store either.
absl::Status AgentImpl::name_the_dead(const std::vector<Worker>& members, absl::Status status,
                                      GracefulEnd& end) {
  if (!absl::IsUnavailable(status)) return status;
  const absl::Time asked = Clock::system().now();
  const absl::Time soon = asked + kLivenessCheck;
  // A worker that was never called is connected to first, which a silent one holds up on each transport.
  const absl::Duration patience =
      2 * options.connect_timeout + options.heartbeat.dead_after + options.heartbeat.suspect_after;
  const absl::Time late = std::min(end.deadline, soon + patience);
  const auto with_both = [&](const absl::Status& ended) {
    if (absl::IsAborted(ended) || ended == status) return ended;
    return absl::UnavailableError(absl::StrCat(ended.message(), "; ", status.message()));
  };
  std::vector<Future<ServiceReply>> pings;
  for (const Worker& worker : members) {
    pings.push_back(agent.call_service(worker, kPing, "", nullptr, {late, false}));
  }
  while (accepts_calls().ok()) {
    for (const Worker& worker : members) {
      if (absl::Status alive = peers->status(worker); !alive.ok()) {
        return with_both(ended_early(worker, alive));
      }
    }
    const bool answered =
        std::all_of(pings.begin(), pings.end(), [](const auto& ping) { return ping.done(); });
    if (answered) {
      // A member to which there is no connection is not missed by its silence: it cannot be connected to.
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (const absl::Status missed = pings[i].result().status(); !missed.ok())
          return with_both(ended_early(members[i], missed));
      }
    }
    if (Clock::system().now() >= (answered ? soon : late)) break;
    if (end.wait.due()) {
      std::vector<ShutdownWait::Unfinished> silent;
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (!pings[i].done())
          silent.push_back({ShutdownWait::Unfinished::Kind::kSilent, "", members[i].name, asked});
      }
      if (!silent.empty()) log(LogLevel::kWarning, end.wait.report(std::move(silent)));
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
                                        GracefulEnd& end) {
  uint64_t previous_total = 0;
  bool previous_quiet = false;
  for (int round = 0;; ++round) {
    GRADWIRE_RETURN_IF_ERROR(finish_own_work(end));
    proto::ShutdownReport mine;
    mine.set_sent(calls_made.load());
    mine.set_idle(idle());
    const std::string key = absl::StrCat(prefix, round, "/");
    GRADWIRE_RETURN_IF_ERROR(write_report(absl::StrCat(key, self.id), mine, end));
    uint64_t sent = 0;
    bool quiet = true;
    for (const Worker& worker : members) {
      GRADWIRE_ASSIGN_OR_RETURN(proto::ShutdownReport report,
                                read_report(absl::StrCat(key, worker.id), worker, members, end));
      sent += report.sent();
      quiet = quiet && report.idle();
    }
    log(LogLevel::kDebug, "worker \"", self.name, "\": round ", round, " of the graceful shutdown: ", sent,
        " calls sent by all, ", quiet ? "nothing" : "something", " under way");
    if (quiet && previous_quiet && sent == previous_total) return absl::OkStatus();
    previous_quiet = quiet;
    previous_total = sent;
    // All have written this round, so all have read the one before.
    if (round > 0) {
      (void)directory->store().try_delete_key(absl::StrCat(prefix, round - 1, "/", self.id), kLastRead);
    }
  }
}

absl::Status AgentImpl::store_unanswered(absl::Time began, GracefulEnd& end) const {
  end.silence.unanswered(Clock::system().now() - began);
  // The directory may have found out before this shutdown began.
  if (!end.silence.lost() && !without_store()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("shutting down gracefully: ", directory->store().description(), " has not answered for ",
                   absl::FormatDuration(absl::Trunc(end.silence.duration(), absl::Seconds(1)))));
}

absl::Status AgentImpl::write_report(const std::string& key, const proto::ShutdownReport& report,
                                     GracefulEnd& end) {
  const absl::Time asked = Clock::system().now();
  while (true) {
    GRADWIRE_RETURN_IF_ERROR(accepts_calls());
    const absl::Time began = Clock::system().now();
    const absl::Status written = directory->store().try_set(key, report.SerializeAsString(), kLivenessCheck);
    if (written.ok()) end.silence.answered();
    if (!absl::IsDeadlineExceeded(written) || Clock::system().now() >= end.deadline) {
      return with_context(store_failure(written), "shutting down gracefully");
    }
    GRADWIRE_RETURN_IF_ERROR(store_unanswered(began, end));
    if (end.wait.due()) {
      const std::string answer = absl::StrCat("the answer of the ", directory->store().description());
      log(LogLevel::kWarning, end.wait.report({{ShutdownWait::Unfinished::Kind::kOther, answer, "", asked}}));
    }
  }
}

absl::StatusOr<proto::ShutdownReport> AgentImpl::read_report(const std::string& key, const Worker& worker,
                                                             const std::vector<Worker>& members,
                                                             GracefulEnd& end) {
  const absl::Time asked = Clock::system().now();
  while (true) {
    GRADWIRE_RETURN_IF_ERROR(accepts_calls());
    const absl::Time began = Clock::system().now();
    const absl::Duration left = end.deadline - began;
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("worker \"", worker.name,
                                                      "\" did not call shutdown in the time that worker \"",
                                                      self.name, "\" gave it"));
    }
    absl::StatusOr<std::string> value = directory->store().try_get(key, std::min(left, kLivenessCheck));
    if (value.ok()) {
      end.silence.answered();
      proto::ShutdownReport report;
      if (!report.ParseFromString(*value))
        return absl::InvalidArgumentError("the store holds no shutdown report");
      return report;
    }
    if (!absl::IsDeadlineExceeded(value.status())) {
      return with_context(store_failure(value.status()), "shutting down gracefully");
    }
    if (store::is_wait_timeout(value.status())) {
      end.silence.answered();
    } else {
      GRADWIRE_RETURN_IF_ERROR(store_unanswered(began, end));
    }
    if (end.wait.due()) {
      std::vector<ShutdownWait::Unfinished> waiting = {
          {ShutdownWait::Unfinished::Kind::kMember, "", worker.name, asked}};
      // This one serves on meanwhile.
      for (auto& call : unfinished()) {
        if (call.kind != ShutdownWait::Unfinished::Kind::kOther) waiting.push_back(std::move(call));
      }
      log(LogLevel::kWarning, end.wait.report(std::move(waiting)));
    }
    // Silent so far: does it live? A dead one shows as lost soon after it fails to answer.
    (void)agent.call_service(worker, kPing, "", nullptr, {Clock::system().now() + kLivenessCheck, false});
    // Without any other member the group cannot agree either.
    for (const Worker& each : members) {
      if (absl::Status alive = peers->status(each); !alive.ok()) return ended_early(each, alive);
    }
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
  log(LogLevel::kInfo, "worker \"", self.name, "\" shuts down: ", reason.message());
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
