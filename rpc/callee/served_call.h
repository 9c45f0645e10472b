#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/callee/callee_cost.h"
#include "gradwire/rpc/callee/registry.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/callee/server_call.h"
#include "gradwire/rpc/device/stream_order.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {

// A wait that two parties may end, for example an event and a deadline. The party whose claim() returns true
// ends the wait; the other one does nothing. Thread-safe.
class ExclusiveEnd {
 public:
  bool claim() { return !claimed_.exchange(true); }
  bool claimed() const { return claimed_.load(); }
  // The timer that ends the wait at the deadline, and must be cancelled if the wait ends before; 0: no timer.
  void set_timer(uint64_t timer) { timer_ = timer; }
  uint64_t timer() const { return timer_.load(); }

 private:
  std::atomic<bool> claimed_{false};
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
  // The parts of its agent that it uses. The call holds the agent.
  struct Parts {
    AgentRuntime& runtime;
    RRefService& rrefs;
    ServedCalls& calls;
    CalleeCost& fetch_cost;
  };
  ServedCall(const Parts& parts, std::shared_ptr<Agent> agent, IncomingCall incoming);
  // Fails the call with Internal if it has not ended.
  ~ServedCall() override;

  Agent& agent() const override { return *agent_; }
  const std::shared_ptr<Executor>& executor() const override { return executor_; }
  const std::string& callee() const override { return callee_; }
  const IncomingPayload& arguments() const override { return arguments_; }
  const std::shared_ptr<void>& target() const override { return target_.value; }
  const TypeOps* target_type() const override { return target_.type; }
  void finish(std::shared_ptr<void> value, const TypeOps* type, StreamFencePtr fence = nullptr) override;
  void fail(absl::Status status) override;
  void release_arguments() override;
  void finish_later() override { state_ = ExecutionState::capture(); }

  const IncomingCall& incoming() const { return incoming_; }
  // The cost of calls of this callee; nullptr if it is unknown.
  TaskCost* cost() const { return cost_; }

  struct Waits {
    ExclusiveEnd target;  // The end of its wait for its object.
    ExclusiveEnd turn;    // The end of its wait for its turn on a serial object.
  };
  Waits& waits() { return waits_; }
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
  void decode_and_serve(std::unique_ptr<StreamScope>& streams);
  void dispatch();
  void finish_in_state(std::shared_ptr<void> value, const TypeOps* type, const StreamFencePtr& fence);
  // Counts the end of the call in the metrics of the agent.
  void count_end(absl::Time now, absl::StatusCode code);
  absl::Status encode_result(std::shared_ptr<void> value, const TypeOps* type, proto::Response& response,
                             EncodedTensors& encoded);
  // Sends the answer, when its bytes are complete. `now`: the time at which the call ended.
  void answer(proto::Envelope& envelope, EncodedTensors&& encoded, absl::Time now);

  // Set once. The agent keeps the parts alive.
  const std::shared_ptr<Agent> agent_;
  const Parts& parts_;
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

  // Synchronised by themselves.
  // nullptr if no profiler sees the handler. Set by run(), before the callee runs.
  std::unique_ptr<ProfiledHandler> profile_;
  std::atomic<bool> ended_{false};
  Waits waits_;
  Trace trace_;
};

}  // namespace gradwire::rpc
