#include "gradwire/rpc/caller/flow_wait.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/call_context.h"

// The wait of a call for room in the flow window of its worker. The thread of the caller waits, because a
// program that starts more work than the window holds must be slowed down.
namespace gradwire::rpc {
namespace {

// One wait for a credit. The first of credit, deadline and cancellation decides how it ends.
struct Waiting {
  explicit Waiting(const std::shared_ptr<Executor>& executor) : ended(executor) {}

  void end(absl::Status status) {
    if (!decided.exchange(true)) ended.set_result(std::move(status));
  }

  std::atomic<bool> decided{false};
  FlowCredit credit;  // Set before `ended` completes.
  Promise<void> ended;
};

std::string describe_usage(const FlowWindow::Usage& usage, const FlowOptions& options,
                           const FlowRequest& request) {
  return absl::StrCat(usage.calls, " calls with ", usage.bytes, " bytes in progress on worker \"",
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
        absl::ResourceExhaustedError(absl::StrCat(
            "cannot start \"", request.callee, "\": the flow window is full with ",
            describe_usage(window.usage(), options, request), "; wait for answers, or raise the limits")),
        request.worker);
  }
  // A credit, the deadline and a cancellation may come at the same time, on three threads. Each callback
  // shares `waiting`, because it may still run when this function has returned. A credit must not be lost in
  // any order:
  //   1. The first event sets `decided` and completes `ended`.
  //   2. A credit that comes second is destroyed in its callback, which gives it back.
  //   3. result() may also fail by itself, with ResourceExhausted if waiting would leave no thread. A credit
  //      that comes after that is stored in `waiting`. It is given back when the window drops the callback,
  //      the last owner.
  auto waiting = std::make_shared<Waiting>(executor);
  const uint64_t waiter =
      window.wait(request.bytes, FlowWindow::Bounds(options), [waiting](FlowCredit credit) {
        // If the wait has ended already, the credit is destroyed here, which gives it back.
        if (waiting->decided.exchange(true)) return;
        waiting->credit = std::move(credit);
        waiting->ended.set_value();
      });
  // There was room by now, and the callback has run inside wait().
  if (waiter == 0) return std::move(waiting->credit);
  const uint64_t timer = timers.schedule(
      request.deadline, [waiting] { waiting->end(absl::DeadlineExceededError("the flow window is full")); });
  const std::shared_ptr<const CallContext> serving = CallContext::current();
  const uint64_t listener =
      serving == nullptr ? 0
                         : serving->cancellation().on_cancelled(
                               [waiting, token = serving->cancellation()] { waiting->end(token.reason()); });
  // The waiting thread drives the event loop meanwhile, so answers that give credits back are received.
  absl::Status status = waiting->ended.future().result();
  // The token and the timer queue must not keep `waiting` until the end of the served call, or until the
  // deadline.
  if (serving != nullptr) serving->cancellation().forget(listener);
  timers.cancel(timer);
  if (status.ok()) return std::move(waiting->credit);
  // Read the usage before cancel_wait(), which may admit the calls behind this one.
  const FlowWindow::Usage usage = window.usage();
  window.cancel_wait(waiter);
  return with_worker(
      absl::Status(
          status.code(),
          absl::StrCat(
              "cannot start \"", request.callee, "\": the flow window was full",
              absl::IsDeadlineExceeded(status)
                  ? absl::StrCat(" until the deadline after ", absl::FormatDuration(request.timeout))
                  : std::string(),
              ": ", describe_usage(usage, options, request),
              absl::IsDeadlineExceeded(status) ? std::string() : absl::StrCat("; ", status.message()))),
      request.worker);
}

}  // namespace gradwire::rpc
