#include "gradwire/tests/chaos/call_checks.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace chaos {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(5);

bool names(const CallRecord& call, int worker) {
  return call.worker == worker_name(worker) ||
         absl::StrContains(call.message, absl::StrCat("\"", worker_name(worker), "\""));
}

// Whether `call` may end with `code` in a run. `cuts`: whether the run cuts connections.
bool may_end_with(const CallRecord& call, absl::StatusCode code, bool cuts) {
  switch (code) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    case absl::StatusCode::kCancelled:
      // The caller cancelled the call, or the caller of the handler that made it did so. Users of a value
      // whose creation was cancelled get this code, too.
      return call.operation == "hold" || call.operation == "chained" || call.operation == "passed" ||
             call.operation == "chain" || call.operation == "pass_on" ||
             absl::EndsWith(call.operation, "_uncertain");
    case absl::StatusCode::kUnknown:
      // The function threw, or the function that should create the referenced value did so.
      return call.operation == "fail" || call.operation == "remote_failing" ||
             absl::EndsWith(call.operation, "_uncertain");
    case absl::StatusCode::kAborted:
      // A connection broke while a reference was being sent, and the sender withdrew the reference.
      if (call.operation == "lend" || call.operation == "keep" || call.operation == "pass_on" ||
          call.operation == "passed") {
        return cuts;
      }
      [[fallthrough]];
    case absl::StatusCode::kNotFound:
      // The value was to be created by another worker, and that failed.
      return absl::EndsWith(call.operation, "_uncertain");
    default:
      return false;
  }
}

}  // namespace

std::string to_string(const CallRecord& call) {
  std::string text =
      absl::StrCat("call ", call.id, " (", call.operation, " to ", absl::StrJoin(call.path, ","), ", ",
                   (call.deadline_us - call.start_us) / 1000, " ms)");
  if (call.end_us < 0) return text + " has not ended";
  return absl::StrCat(text, " ended after ", (call.end_us - call.start_us) / 1000, " ms with ",
                      absl::StatusCodeToString(call.code), " ", call.worker, ": ", call.message);
}

std::optional<std::string> check_call(const CallRecord& call, const CallConditions& run) {
  if (call.operation == "violation") return call.message;
  if (call.end_us < 0) return to_string(call);
  const absl::Duration overrun = absl::Microseconds(call.end_us - call.deadline_us);
  if (overrun > kGrace + run.paused) {
    return absl::StrCat(to_string(call), ": ", absl::FormatDuration(overrun), " after its deadline");
  }
  if (run.outcast) return std::nullopt;
  if (!may_end_with(call, call.code, run.plan->cut > 0)) return to_string(call);

  // A call may exceed its deadline only if a fault of the run delays calls.
  if (call.code == absl::StatusCode::kDeadlineExceeded && run.plan->undelayed() && call.operation != "hold") {
    return to_string(call) + ": deadline exceeded, but no fault of the run delays calls";
  }

  const bool to_the_dead = call.operation == "call_dead" || call.operation == "fetch_from_dead";
  const bool must_succeed = call.operation == "call_living" || call.operation == "fetch_last";
  if (to_the_dead && call.code != absl::StatusCode::kUnavailable) {
    return to_string(call) + ": expected Unavailable";
  }
  if (must_succeed && call.code != absl::StatusCode::kOk) return to_string(call);

  if (call.code == absl::StatusCode::kUnavailable) {
    const auto is_named = [&](int worker) { return names(call, worker); };
    const auto was_killed = [&](int worker) { return run.killed.contains(worker); };
    // The call may name a killed worker that is not on its path: the owner of a reference that was sent with
    // it.
    const bool names_one_killed = std::any_of(run.killed.begin(), run.killed.end(), is_named);
    if (!names_one_killed && std::none_of(call.path.begin(), call.path.end(), is_named)) {
      return to_string(call) + ": the error does not name the worker";
    }
    // Only cut connections and killed workers make a worker unavailable. A pause does not.
    if (run.plan->cut == 0 && !names_one_killed &&
        std::none_of(call.path.begin(), call.path.end(), was_killed)) {
      return to_string(call) +
             ": Unavailable, but no worker on its path was killed and no connection was cut";
    }
  }
  return std::nullopt;
}

}  // namespace chaos
