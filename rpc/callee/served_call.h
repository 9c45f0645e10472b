#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/order/stream_order.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/runtime/runtime.h"

namespace gradwire::rpc {

// The wait of a call for its turn on a strand. Thread-safe.
class TurnWait {
 public:
  // The turn has come, or the call has ended before.
  void end(TimerQueue& timers) {
    over_ = true;
    // Most calls have none, because their turn comes at once.
    if (const uint64_t timer = timer_.load(); timer != 0) timers.cancel(timer);
  }
  bool over() const { return over_.load(); }
  // The timer that ends the call if its turn does not come in time. Cancels it if the wait is over.
  void set_timer(uint64_t timer, TimerQueue& timers) {
    timer_ = timer;
    if (over()) timers.cancel(timer);
  }

 private:
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> timer_{0};
};

// One request on its way through the server. Its states:
//   1. parsed, on the transport's thread
//   2. waiting for its target (the object of a method)
//   3. waiting for admission to its autograd context
//   4. queued
//   5. running
//   6. ended, by finish() or fail(), exactly once
class ServedCall : public ServerCall, public std::enable_shared_from_this<ServedCall> {
 public:
  // The services of its agent that it uses. The call holds the agent.
  struct Services {
    AgentRuntime& runtime;
    RRefService& rrefs;
    ServedCalls& calls;
    CalleeCost& fetch_cost;
  };
  ServedCall(const Services& services, std::shared_ptr<Agent> agent, IncomingCall incoming);
  // Fails the call with Internal if it has not ended.
  ~ServedCall() override;

  Agent& agent() const override { return *agent_; }
  const std::shared_ptr<Executor>& executor() const override { return executor_; }
  const std::string& callee() const override { return callee_; }
  const IncomingPayload& arguments() const override { return arguments_; }
  const std::shared_ptr<void>& target() const override { return target_.value; }
  const TypeOps* target_type() const override { return target_.type; }
  void finish(std::shared_ptr<void> value, const TypeOps* type, StreamFencePtr fence = nullptr) override;
  void fail(absl::Status status) noexcept override;
  void release_arguments() override;
  void finish_later() override { state_ = ExecutionState::capture(); }

  const IncomingCall& incoming() const { return incoming_; }
  // The cost of calls of this callee; nullptr if it is unknown.
  TaskCost* cost() const { return cost_; }

  // Takes the call out of the place where it waits, and fails it with `reason`. Has no effect if the place
  // has let the call go on: so the place decides which of the two comes first.
  using Leave = absl::AnyInvocable<void(const absl::Status& reason)>;
  // The call waits at `place` (for its object, its context or its turn) before it runs. If its token fires
  // meanwhile, `leave` is called: at once, if the token has fired. So a call that has ended stays nowhere.
  // `leave` must not own the call.
  void wait_at(CallState place, Leave leave);
  // Calls the `leave` of the place where the call waits, if it waits.
  void end_wait(const absl::Status& reason);
  TurnWait& turn_wait() { return turn_wait_; }
  // For reports and flight records.
  struct Trace {
    void at(CallState now) { state.store(now, std::memory_order_relaxed); }

    SharedCallState state{CallState::kQueued};
    // The call's record in the agent's CallRecorder. Set once, before the call can end.
    uint64_t record = CallRecorder::kNone;
    // The request was a repetition, or was refused: the call is destroyed without an answer of its own.
    bool dropped = false;
  };
  Trace& trace() { return trace_; }
  void set_target(OwnedValue target) { target_ = std::move(target); }
  // Called once when the call has ended.
  void on_ended(absl::AnyInvocable<void()> callback) { on_ended_ = std::move(callback); }

  // Decodes the arguments and runs the callee. Call on a thread of the executor, in a clean ExecutionState.
  void run();

 private:
  void run_handler();
  void decode_and_serve(std::unique_ptr<StreamScope>& streams);
  void dispatch();
  // Ends this process if it is a forked child of the agent's process.
  void end_if_forked() const;
  void finish_in_state(std::shared_ptr<void> value, const TypeOps* type, const StreamFencePtr& fence);
  // Counts the end of the call in the metrics of the agent.
  void count_end(absl::Time now, absl::StatusCode code);
  absl::Status encode_result(std::shared_ptr<void> value, const TypeOps* type, proto::Response& response,
                             EncodedTensors& encoded);
  // REQUIRES: no answer has been sent, and ended_ is set.
  void answer_error(absl::Status status) noexcept;
  // Sends the answer, when its bytes are complete. `now`: the time at which the call ended. After an
  // exception nothing was sent.
  void answer(proto::Envelope& envelope, EncodedTensors&& encoded, absl::Time now);
  void send_answer(proto::Envelope& envelope, EncodedTensors&& encoded, absl::Time now) noexcept;
  absl::StatusOr<uint64_t> send_or_refuse(Link& link, proto::Envelope& envelope,
                                          EncodedTensors&& encoded) noexcept;
  void record_end(absl::Time now, absl::StatusCode code) noexcept;

  // Set once. The agent keeps the services alive.
  const std::shared_ptr<Agent> agent_;
  const Services& services_;
  IncomingCall incoming_;
  const std::shared_ptr<Executor> executor_;
  const std::string callee_;
  CalleeKind kind_ = CalleeKind::kFunction;
  const Callee* registered_ = nullptr;
  TaskCost* cost_ = nullptr;

  // The device work of the handler.
  StreamOrder::Work device_work_;

  // Used only by the thread that handles the call at present.
  IncomingPayload arguments_;
  OwnedValue target_;
  // When its handler began; InfinitePast before.
  absl::Time begun_ = absl::InfinitePast();
  // The ExecutionState of the handler (agent, call, context), for a call that ends later.
  ExecutionState state_;
  absl::AnyInvocable<void()> on_ended_;

  Mutex wait_mutex_;
  // The last place where the call has waited, and how it leaves it; empty when that is over.
  CallState place_ ABSL_GUARDED_BY(wait_mutex_) = CallState::kSent;
  Leave leave_ ABSL_GUARDED_BY(wait_mutex_);

  // Synchronised by themselves.
  // nullptr if no profiler sees the handler. Set by run(), before the callee runs.
  std::unique_ptr<ProfiledHandler> profile_;
  std::atomic<bool> ended_{false};
  TurnWait turn_wait_;
  Trace trace_;
};

}  // namespace gradwire::rpc
