#include "gradwire/rpc/caller/flow_wait.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/call_context.h"

namespace gradwire::rpc {
namespace {

// One wait and its end, which is decided once.
struct Waiting {
  explicit Waiting(const std::shared_ptr<Executor>& executor) : ended(executor) {}

  void end(absl::Status status) {
    if (!decided.exchange(true)) ended.set_result(std::move(status));
  }

  std::atomic<bool> decided{false};
  FlowCredit credit;  // Before `ended`.
  Promise<void> ended;
};

std::string limits(const FlowWindow::Usage& usage, const FlowOptions& options, const FlowRequest& request) {
  return absl::StrCat(usage.calls, " calls with ", usage.bytes, " bytes under way to worker \"",
                      request.worker, "\", this call has ", request.bytes,
                      " bytes (RpcBackendOptions.flow: max_calls ", options.max_calls, ", max_bytes ",
                      options.max_bytes, ")");
}

}  // namespace

absl::StatusOr<FlowCredit> enter_full_window(FlowWindow& window, const FlowOptions& options,
                                             const FlowRequest& request,
                                             const std::shared_ptr<Executor>& executor, TimerQueue& timers) {
  if (options.when_full == FlowPolicy::kResourceExhausted) {
    return with_worker(
        absl::ResourceExhaustedError(absl::StrCat("no room for \"", request.callee, "\": there are ",
                                                  limits(window.usage(), options, request),
                                                  "; wait for answers, or raise the limits")),
        request.worker);
  }
  auto waiting = std::make_shared<Waiting>(executor);
  const uint64_t place =
      window.wait(request.bytes, FlowWindow::Bounds(options), [waiting](FlowCredit credit) {
        // One that comes too late goes back at once.
        if (waiting->decided.exchange(true)) return;
        waiting->credit = std::move(credit);
        waiting->ended.set_value();
      });
  if (place == 0) return std::move(waiting->credit);
  const uint64_t timer = timers.schedule(
      request.deadline, [waiting] { waiting->end(absl::DeadlineExceededError("the window is full")); });
  const std::shared_ptr<const CallContext> serving = CallContext::current();
  const uint64_t listener =
      serving == nullptr ? 0
                         : serving->cancellation().on_cancelled(
                               [waiting, token = serving->cancellation()] { waiting->end(token.reason()); });
  absl::Status status = waiting->ended.future().result();
  if (serving != nullptr) serving->cancellation().forget(listener);
  timers.cancel(timer);
  if (status.ok()) return std::move(waiting->credit);
  const FlowWindow::Usage usage = window.usage();
  window.leave(place);
  return with_worker(
      absl::Status(
          status.code(),
          absl::StrCat(
              "\"", request.callee, "\" waited for room in a full window",
              absl::IsDeadlineExceeded(status)
                  ? absl::StrCat(" for the ", absl::FormatDuration(request.timeout), " that it had")
                  : std::string(),
              ": there are ", limits(usage, options, request),
              absl::IsDeadlineExceeded(status) ? std::string() : absl::StrCat("; ", status.message()))),
      request.worker);
}

}  // namespace gradwire::rpc
