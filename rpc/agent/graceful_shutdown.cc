#include "gradwire/rpc/agent/graceful_shutdown.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/membership/shutdown_wait.h"
#include "gradwire/rpc/membership/store_silence.h"
#include "gradwire/rpc/rref/reference_codec.h"

namespace gradwire::rpc {
namespace {

constexpr absl::Duration kIdleCheck = absl::Milliseconds(1);
constexpr absl::Duration kLivenessCheck = absl::Seconds(1);
constexpr absl::Duration kLastRead = absl::Seconds(5);

absl::Status ended_early(const Worker& worker, const absl::Status& reason) {
  // It is this worker that the others have given up.
  if (absl::IsAborted(reason)) return reason;
  return absl::UnavailableError(
      absl::StrCat("worker \"", worker.name, "\" ended before the graceful shutdown: ", reason.message()));
}

// See shut_down_gracefully(). Used by one thread.
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
    if (parts_.membership.is_open()) return finish_own_work();
    absl::Status status = agree_in_rounds();
    if (!status.ok()) return share_failure(name_the_dead(std::move(status)));
    return leave_together();
  }

 private:
  // Nothing under way that the shutdown would wait for.
  bool idle() const {
    if (parts_.caller.pending().unfinished() > 0 || parts_.served.under_way() > 0 ||
        parts_.references.messages_under_way() > 0)
      return false;
    // Continuations of calls, and destructors of values, may call.
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
    for (ServedCalls::UnderWay& call : parts_.served.calls_under_way()) {
      list.push_back({Kind::kServed, std::move(call.callee), name_of(call.caller), call.since});
    }
    for (PendingCalls::Waiting& call : parts_.caller.pending().waiting()) {
      list.push_back({Kind::kCalled, std::move(call.callee), name_of(call.to), call.since});
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
        return absl::DeadlineExceededError(absl::StrCat(
            "worker \"", self_.name, "\" still has calls under way when its graceful shutdown's time is up: ",
            wait_.list(unfinished())));
      }
      if (wait_.due()) log(LogLevel::kWarning, wait_.report(unfinished()));
      absl::SleepFor(kIdleCheck);
    }
    return absl::OkStatus();
  }

  absl::Status agree_in_rounds() {
    uint64_t previous_total = 0;
    bool previous_quiet = false;
    for (int round = 0;; ++round) {
      GRADWIRE_RETURN_IF_ERROR(finish_own_work());
      proto::ShutdownReport mine;
      mine.set_sent(parts_.caller.calls_made());
      mine.set_idle(idle());
      const std::string key = absl::StrCat(prefix_, round, "/");
      GRADWIRE_RETURN_IF_ERROR(write_report(absl::StrCat(key, self_.id), mine));
      uint64_t sent = 0;
      bool quiet = true;
      for (const Worker& worker : members_) {
        GRADWIRE_ASSIGN_OR_RETURN(proto::ShutdownReport report,
                                  read_report(absl::StrCat(key, worker.id), worker));
        sent += report.sent();
        quiet = quiet && report.idle();
      }
      log(LogLevel::kDebug, "worker \"", self_.name, "\": round ", round, " of the graceful shutdown: ", sent,
          " calls sent by all, ", quiet ? "nothing" : "something", " under way");
      if (quiet && previous_quiet && sent == previous_total) return absl::OkStatus();
      previous_quiet = quiet;
      previous_total = sent;
      // All have written this round, so all have read the one before.
      if (round > 0) {
        (void)store().try_delete_key(absl::StrCat(prefix_, round - 1, "/", self_.id), kLastRead);
      }
    }
  }

  absl::Status store_unanswered(absl::Time began) {
    silence_.unanswered(Clock::system().now() - began);
    // The directory may have found out before this shutdown began.
    if (!silence_.lost() && !parts_.membership.without_store()) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("shutting down gracefully: ", store().description(), " has not answered for ",
                     absl::FormatDuration(absl::Trunc(silence_.duration(), absl::Seconds(1)))));
  }

  // Both try again while the store is merely silent; Unavailable when it is lost.
  absl::Status write_report(const std::string& key, const proto::ShutdownReport& report) {
    const absl::Time asked = Clock::system().now();
    while (true) {
      GRADWIRE_RETURN_IF_ERROR(parts_.runtime.accepts_calls());
      const absl::Time began = Clock::system().now();
      const absl::Status written = store().try_set(key, report.SerializeAsString(), kLivenessCheck);
      if (written.ok()) silence_.answered();
      if (!absl::IsDeadlineExceeded(written) || Clock::system().now() >= deadline_) {
        return with_context(store_failure(written), "shutting down gracefully");
      }
      GRADWIRE_RETURN_IF_ERROR(store_unanswered(began));
      if (wait_.due()) {
        const std::string answer = absl::StrCat("the answer of the ", store().description());
        log(LogLevel::kWarning, wait_.report({{ShutdownWait::Unfinished::Kind::kOther, answer, "", asked}}));
      }
    }
  }

  absl::StatusOr<proto::ShutdownReport> read_report(const std::string& key, const Worker& worker) {
    const absl::Time asked = Clock::system().now();
    while (true) {
      GRADWIRE_RETURN_IF_ERROR(parts_.runtime.accepts_calls());
      const absl::Time began = Clock::system().now();
      const absl::Duration left = deadline_ - began;
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(absl::StrCat("worker \"", worker.name,
                                                        "\" did not call shutdown in the time that worker \"",
                                                        self_.name, "\" gave it"));
      }
      absl::StatusOr<std::string> value = store().try_get(key, std::min(left, kLivenessCheck));
      if (value.ok()) {
        silence_.answered();
        proto::ShutdownReport report;
        if (!report.ParseFromString(*value))
          return absl::InvalidArgumentError("the store holds no shutdown report");
        return report;
      }
      if (!absl::IsDeadlineExceeded(value.status())) {
        return with_context(store_failure(value.status()), "shutting down gracefully");
      }
      if (store::is_wait_timeout(value.status())) {
        silence_.answered();
      } else {
        GRADWIRE_RETURN_IF_ERROR(store_unanswered(began));
      }
      if (wait_.due()) {
        std::vector<ShutdownWait::Unfinished> waiting = {
            {ShutdownWait::Unfinished::Kind::kMember, "", worker.name, asked}};
        // This one serves on meanwhile.
        for (auto& call : unfinished()) {
          if (call.kind != ShutdownWait::Unfinished::Kind::kOther) waiting.push_back(std::move(call));
        }
        log(LogLevel::kWarning, wait_.report(std::move(waiting)));
      }
      // Silent so far: does it live? A dead one shows as lost soon after it fails to answer.
      (void)parts_.caller.call_service(worker, kPing, "", nullptr,
                                       {Clock::system().now() + kLivenessCheck, false});
      // Without any other member the group cannot agree either.
      for (const Worker& each : members_) {
        if (absl::Status alive = parts_.peers.status(each); !alive.ok()) return ended_early(each, alive);
      }
    }
  }

  // When the store went with the worker that hosted it, that worker is what people need to know of. A killed
  // one shows at once, a paused one by its silence: a member that does not answer its ping is waited for
  // until it is dead. The error says both: a member may also have left because it cannot reach the store
  // either.
  absl::Status name_the_dead(absl::Status status) {
    if (!absl::IsUnavailable(status)) return status;
    const absl::Time asked = Clock::system().now();
    const absl::Time soon = asked + kLivenessCheck;
    // A worker that was never called is connected to first, which a silent one holds up on each transport.
    const absl::Duration timeout = 2 * parts_.runtime.options.connect_timeout +
                                   parts_.runtime.options.heartbeat.dead_after +
                                   parts_.runtime.options.heartbeat.suspect_after;
    const absl::Time late = std::min(deadline_, soon + timeout);
    const auto with_both = [&](const absl::Status& ended) {
      if (absl::IsAborted(ended) || ended == status) return ended;
      return absl::UnavailableError(absl::StrCat(ended.message(), "; ", status.message()));
    };
    std::vector<Future<ServiceReply>> pings;
    for (const Worker& worker : members_) {
      pings.push_back(parts_.caller.call_service(worker, kPing, "", nullptr, {late, false}));
    }
    while (parts_.runtime.accepts_calls().ok()) {
      for (const Worker& worker : members_) {
        if (absl::Status alive = parts_.peers.status(worker); !alive.ok()) {
          return with_both(ended_early(worker, alive));
        }
      }
      const bool answered =
          std::all_of(pings.begin(), pings.end(), [](const auto& ping) { return ping.done(); });
      if (answered) {
        // A member without a connection does not show as silent, but as one that cannot be connected to.
        for (std::size_t i = 0; i < members_.size(); ++i) {
          if (const absl::Status missed = pings[i].result().status(); !missed.ok())
            return with_both(ended_early(members_[i], missed));
        }
      }
      if (Clock::system().now() >= (answered ? soon : late)) break;
      if (wait_.due()) {
        std::vector<ShutdownWait::Unfinished> silent;
        for (std::size_t i = 0; i < members_.size(); ++i) {
          if (!pings[i].done())
            silent.push_back({ShutdownWait::Unfinished::Kind::kSilent, "", members_[i].name, asked});
        }
        if (!silent.empty()) log(LogLevel::kWarning, wait_.report(std::move(silent)));
      }
      absl::SleepFor(kIdleCheck);
    }
    return status;
  }

  // The first member that fails says why, and the others say the same: the one that ended because of a dead
  // worker is not the culprit.
  absl::Status share_failure(absl::Status status) {
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    proto::StatusValue mine;
    status_to_proto(status, mine);
    auto said = store().try_compare_set(absl::StrCat(prefix_, "failed"), "", mine.SerializeAsString(),
                                        kLivenessCheck);
    proto::StatusValue first;
    if (!said.ok() || !first.ParseFromString(*said)) return status;
    absl::Status shared = status_from_proto(first);
    return shared.ok() ? status : shared;
  }

  absl::Status leave_together() {
    parts_.membership.begin_ending();
    // All have left before anybody returns, so that a new group over the same store meets none of them.
    // Rank 0 may host the store: it stays until the others have come here too.
    (void)parts_.membership.directory()->leave();
    const std::string done = absl::StrCat(prefix_, "done/");
    GRADWIRE_RETURN_IF_ERROR(store_failure(store().try_set(absl::StrCat(done, self_.id), "", kLastRead)));
    std::vector<std::string> keys;
    for (const Worker& worker : members_) keys.push_back(absl::StrCat(done, worker.id));
    (void)store().try_wait(keys, kLastRead);
    return absl::OkStatus();
  }
  store::Store& store() const { return parts_.membership.directory()->store(); }

  const ShutdownParts parts_;
  const Worker& self_;
  const absl::Time deadline_;
  const std::vector<Worker> members_;
  // The prefix of the keys in the store. The incarnations distinguish this group from earlier ones in the
  // same store.
  std::string prefix_;
  // The store's silence over all calls that this shutdown makes.
  StoreSilence silence_;
  ShutdownWait wait_;
};

}  // namespace

absl::Status shut_down_gracefully(const ShutdownParts& parts, absl::Time deadline) {
  return GracefulShutdown(parts, deadline).run();
}

}  // namespace gradwire::rpc
