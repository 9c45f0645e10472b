#include "gradwire/rpc/agent/graceful_shutdown.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/membership/shutdown_wait.h"
#include "gradwire/rpc/membership/store_silence.h"
#include "gradwire/rpc/rref/reference_codec.h"

namespace gradwire::rpc {
namespace {

// Time between two checks whether this worker is idle.
constexpr absl::Duration kIdleCheck = absl::Milliseconds(1);
// Maximum time of one call to the store and of one ping. After it the states of the members are checked
// again.
constexpr absl::Duration kLivenessCheck = absl::Seconds(1);
// Maximum time of calls to the store whose failure changes nothing any more.
constexpr absl::Duration kLastRead = absl::Seconds(5);

absl::Status ended_early(const Worker& worker, const absl::Status& reason) {
  // Aborted means that the group has declared this worker dead.
  if (absl::IsAborted(reason)) return reason;
  return absl::UnavailableError(
      absl::StrCat("worker \"", worker.name, "\" ended before the graceful shutdown: ", reason.message()));
}

// Implements shut_down_gracefully(). Used by one thread.
class GracefulShutdown {
 public:
  GracefulShutdown(const ShutdownParts& parts, absl::Time deadline)
      : parts_(parts),
        self_(parts.runtime.self),
        deadline_(deadline),
        members_(parts.peers.workers()),
        silence_(parts.runtime.options.heartbeat.dead_after),
        wait_(self_.name) {
    uint64_t group = 0;
    for (const Worker& worker : members_) group ^= worker.incarnation;
    prefix_ = absl::StrCat("shutdown/", absl::Hex(group), "/");
  }

  absl::Status run() {
    if (parts_.membership.is_open()) {
      // Otherwise the calls of others could go on without limit, and chance would decide which of them fail.
      parts_.served.leave(absl::UnavailableError(
          absl::StrCat("worker \"", self_.name, "\" is shutting down; the call has not run")));
      return finish_own_work();
    }
    absl::Status status = agree_in_rounds();
    if (!status.ok()) return share_failure(name_lost_member(std::move(status)));
    return leave_together();
  }

 private:
  // Whether this worker has no work in progress for which the shutdown must wait.
  bool idle() const {
    if (parts_.caller.pending().unfinished() > 0 || parts_.served.in_progress() > 0 ||
        parts_.references.messages_under_way() > 0)
      return false;
    // Continuations of calls and destructors of values may make calls.
    if (parts_.runtime.executor->pending() > 0) return false;
    for (const auto& extension : parts_.runtime.extensions) {
      if (!extension->idle()) return false;
    }
    return true;
  }

  // The work that idle() waits for.
  std::vector<ShutdownWait::Unfinished> unfinished() const {
    using Kind = ShutdownWait::Unfinished::Kind;
    const auto name_of = [this](uint64_t incarnation) {
      absl::StatusOr<Worker> worker = parts_.peers.find_by_incarnation(incarnation);
      return worker.ok() ? worker->name : std::string("unknown");
    };
    std::vector<ShutdownWait::Unfinished> list;
    const auto add = [&](CallReport call, Kind kind, Kind stream_kind) {
      const bool is_stream = !call.stream_of.empty();
      list.push_back({is_stream ? stream_kind : kind, std::move(is_stream ? call.stream_of : call.callee),
                      name_of(call.peer), call.since});
    };
    for (CallReport& call : parts_.served.calls_in_progress()) {
      if (call.target != Id()) call.stream_of = parts_.references.stream_of(call.target);
      add(std::move(call), Kind::kServed, Kind::kStreamServed);
    }
    for (CallReport& call : parts_.caller.pending().waiting()) {
      add(std::move(call), Kind::kCalled, Kind::kStreamRead);
    }
    if (!list.empty()) return list;
    // Work without a name: messages about references, backward passes, continuations, destructors.
    const absl::Time now = Clock::system().now();
    if (parts_.references.messages_under_way() > 0)
      list.push_back({Kind::kOther, "messages about references", "", now});
    const bool passes = std::any_of(parts_.runtime.extensions.begin(), parts_.runtime.extensions.end(),
                                    [](const auto& extension) { return !extension->idle(); });
    if (passes) list.push_back({Kind::kOther, "backward passes or steps of optimizers", "", now});
    if (list.empty())
      list.push_back({Kind::kOther, "continuations of calls, or destructors of values", "", now});
    return list;
  }

  absl::Status finish_own_work() {
    while (!idle()) {
      GRADWIRE_RETURN_IF_ERROR(parts_.runtime.accepts_calls());
      if (Clock::system().now() > deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat("worker \"", self_.name,
                         "\" still has work in progress at the timeout of its graceful shutdown: ",
                         wait_.list(unfinished())));
      }
      progress_.update([&] { return state_of(unfinished()); });
      absl::SleepFor(kIdleCheck);
    }
    return absl::OkStatus();
  }

  absl::Status agree_in_rounds() {
    uint64_t previous_total = 0;
    bool previous_quiet = false;
    for (int round = 0;; ++round) {
      GRADWIRE_RETURN_IF_ERROR(finish_own_work());
      proto::ShutdownReport own;
      // The count is read before the state. A call that begins between the two is missing in this round's
      // total, and appears in the next one. In the other order a worker could report itself idle and count
      // the call in the same round, which the argument in the header excludes.
      own.set_sent(parts_.caller.calls_made());
      own.set_idle(idle());
      const std::string key = absl::StrCat(prefix_, round, "/");
      GRADWIRE_RETURN_IF_ERROR(write_report(absl::StrCat(key, self_.id), own));
      uint64_t sent = 0;
      bool quiet = true;
      for (const Worker& worker : members_) {
        GRADWIRE_ASSIGN_OR_RETURN(proto::ShutdownReport report,
                                  read_report(absl::StrCat(key, worker.id), worker));
        sent += report.sent();
        quiet = quiet && report.idle();
      }
      log(LogLevel::kDebug, "worker \"", self_.name, "\": round ", round, " of the graceful shutdown: ", sent,
          " calls sent by all members, ", quiet ? "all members idle" : "some member busy");
      if (quiet && previous_quiet && sent == previous_total) return absl::OkStatus();
      previous_quiet = quiet;
      previous_total = sent;
      // Every member has written its report of this round, so every member has read the round before.
      if (round > 0) {
        (void)store().try_delete_key(absl::StrCat(prefix_, round - 1, "/", self_.id), kLastRead);
      }
    }
  }

  absl::Status store_unanswered(absl::Time began) {
    silence_.unanswered(Clock::system().now() - began);
    // The directory may have noticed the loss before this shutdown began.
    if (!silence_.lost() && !parts_.membership.without_store()) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("shutting down gracefully: ", store().description(), " has not answered for ",
                     absl::FormatDuration(absl::Trunc(silence_.duration(), absl::Seconds(1)))));
  }

  // write_report() and read_report() try again while the store is silent. Error: Unavailable when it is lost.
  absl::Status write_report(const std::string& key, const proto::ShutdownReport& report) {
    const absl::Time asked = Clock::system().now();
    while (true) {
      GRADWIRE_RETURN_IF_ERROR(parts_.runtime.accepts_calls());
      const absl::Time began = Clock::system().now();
      const absl::Status written = store().try_set(key, report.SerializeAsString(), kLivenessCheck);
      if (written.ok()) silence_.answered();
      if (!absl::IsDeadlineExceeded(written) || Clock::system().now() >= deadline_) {
        return with_context(store_failure_of_member(written), "shutting down gracefully");
      }
      GRADWIRE_RETURN_IF_ERROR(store_unanswered(began));
      progress_.update([&] {
        const std::string answer = absl::StrCat("the answer of the ", store().description());
        return state_of({{ShutdownWait::Unfinished::Kind::kOther, answer, "", asked}});
      });
    }
  }

  absl::StatusOr<proto::ShutdownReport> read_report(const std::string& key, const Worker& worker) {
    const absl::Time asked = Clock::system().now();
    while (true) {
      GRADWIRE_RETURN_IF_ERROR(parts_.runtime.accepts_calls());
      const absl::Time began = Clock::system().now();
      const absl::Duration left = deadline_ - began;
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("worker \"", worker.name,
                         "\" did not call shutdown before the timeout of the graceful shutdown of worker \"",
                         self_.name, "\""));
      }
      absl::StatusOr<std::string> value = store().try_get(key, std::min(left, kLivenessCheck));
      if (value.ok()) {
        silence_.answered();
        proto::ShutdownReport report;
        if (!report.ParseFromString(*value))
          return absl::InvalidArgumentError(absl::StrCat("malformed shutdown report of worker \"",
                                                         worker.name, "\" in ", store().description()));
        return report;
      }
      if (!absl::IsDeadlineExceeded(value.status())) {
        return with_context(store_failure_of_member(value.status()), "shutting down gracefully");
      }
      if (store::is_wait_timeout(value.status())) {
        silence_.answered();
      } else {
        GRADWIRE_RETURN_IF_ERROR(store_unanswered(began));
      }
      progress_.update([&] {
        std::vector<ShutdownWait::Unfinished> waiting = {
            {ShutdownWait::Unfinished::Kind::kMember, "", worker.name, asked}};
        // This worker still serves calls while it waits; report them, too.
        for (auto& call : unfinished()) {
          if (call.kind != ShutdownWait::Unfinished::Kind::kOther) waiting.push_back(std::move(call));
        }
        return state_of(std::move(waiting));
      });
      // Ping the member. If it is dead, the ping finds that out, and the member is soon reported as lost.
      (void)parts_.caller.call_service(worker, kPing, "", nullptr,
                                       {Clock::system().now() + kLivenessCheck, false});
      // The group cannot agree if any member is lost.
      for (const Worker& each : members_) {
        if (absl::Status alive = parts_.peers.status(each); !alive.ok()) return ended_early(each, alive);
      }
    }
  }

  // If the store was lost together with the worker that hosted it, the error should name that worker. A
  // killed worker is noticed at once, a paused one only by its silence. So:
  //   1. Ping all members.
  //   2. If a member is lost, or its ping fails, return an error with its end and `status`. Both are needed:
  //      the member may also have left because it cannot reach the store either.
  //   3. If all pings are answered, wait a little longer for a loss, then return `status`.
  absl::Status name_lost_member(absl::Status status) {
    // Aborted: the store was started again, perhaps together with its worker. Or the group has declared this
    // worker dead; then all members are lost, and the first one has the same error.
    if (!absl::IsUnavailable(status) && !absl::IsAborted(status)) return status;
    const absl::Time asked = Clock::system().now();
    const absl::Time grace_end = asked + kLivenessCheck;
    // The ping of a worker that was never called connects first. If the worker is silent, that takes
    // connect_timeout on each transport.
    const absl::Duration timeout = 2 * parts_.runtime.options.connect_timeout +
                                   parts_.runtime.options.heartbeat.dead_after +
                                   parts_.runtime.options.heartbeat.suspect_after;
    const absl::Time limit = std::min(deadline_, grace_end + timeout);
    const auto combine = [&](const absl::Status& ended) {
      if (absl::IsAborted(ended) || ended == status) return ended;
      return absl::UnavailableError(absl::StrCat(ended.message(), "; ", status.message()));
    };
    std::vector<Future<ServiceReply>> pings;
    for (const Worker& worker : members_) {
      pings.push_back(parts_.caller.call_service(worker, kPing, "", nullptr, {limit, false}));
    }
    while (parts_.runtime.accepts_calls().ok()) {
      for (const Worker& worker : members_) {
        if (absl::Status alive = parts_.peers.status(worker); !alive.ok()) {
          return combine(ended_early(worker, alive));
        }
      }
      const bool answered =
          std::all_of(pings.begin(), pings.end(), [](const auto& ping) { return ping.done(); });
      if (answered) {
        // The ping of a dead member without a connection fails because no connection can be made.
        for (std::size_t i = 0; i < members_.size(); ++i) {
          if (const absl::Status failed = pings[i].result().status(); !failed.ok())
            return combine(ended_early(members_[i], failed));
        }
      }
      if (Clock::system().now() >= (answered ? grace_end : limit)) break;
      progress_.update([&]() -> std::optional<ProgressState> {
        std::vector<ShutdownWait::Unfinished> silent;
        for (std::size_t i = 0; i < members_.size(); ++i) {
          if (!pings[i].done())
            silent.push_back({ShutdownWait::Unfinished::Kind::kSilent, "", members_[i].name, asked});
        }
        if (silent.empty()) return std::nullopt;
        return state_of(std::move(silent));
      });
      absl::SleepFor(kIdleCheck);
    }
    return status;
  }

  // The first member that fails writes its error to the store, and the others return the same error.
  // Otherwise a member that ended because of a dead worker would be named in its place.
  absl::Status share_failure(absl::Status status) {
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    proto::StatusValue own;
    status_to_proto(status, own);
    auto winner =
        store().try_compare_set(absl::StrCat(prefix_, "failed"), "", own.SerializeAsString(), kLivenessCheck);
    proto::StatusValue first;
    if (!winner.ok() || !first.ParseFromString(*winner)) return status;
    absl::Status shared = status_from_proto(first);
    return shared.ok() ? status : shared;
  }

  absl::Status leave_together() {
    // From here on the end of another member is not a failure.
    parts_.membership.begin_ending();
    // 1. Leave the group. All members leave before any member returns, so that a new group in the same store
    //    meets none of them.
    (void)parts_.membership.directory()->leave();
    // 2. Wait until all other members have left. Rank 0 may host the store, so it must not end before them.
    const std::string done = absl::StrCat(prefix_, "done/");
    GRADWIRE_RETURN_IF_ERROR(
        store_failure_of_member(store().try_set(absl::StrCat(done, self_.id), "", kLastRead)));
    std::vector<std::string> keys;
    for (const Worker& worker : members_) keys.push_back(absl::StrCat(done, worker.id));
    // All have agreed already, so an error changes nothing: at worst this worker ends before another one.
    (void)store().try_wait(keys, kLastRead);
    return absl::OkStatus();
  }
  ProgressState state_of(std::vector<ShutdownWait::Unfinished> unfinished) const {
    return {.text = wait_.report(std::move(unfinished))};
  }
  store::Store& store() const { return parts_.membership.directory()->store(); }

  const ShutdownParts parts_;
  const Worker& self_;
  const absl::Time deadline_;
  const std::vector<Worker> members_;
  // The prefix of the keys in the store. The incarnations distinguish this group from earlier ones in the
  // same store.
  std::string prefix_;
  // The silence of the store, over all its calls in this shutdown.
  StoreSilence silence_;
  const ShutdownWait wait_;
  Progress progress_;
};

}  // namespace

absl::Status shut_down_gracefully(const ShutdownParts& parts, absl::Time deadline) {
  return GracefulShutdown(parts, deadline).run();
}

}  // namespace gradwire::rpc
