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
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {

// A wait that two may end, for example what is waited for and a deadline. Whoever is first takes it, and goes
// on. Thread-safe.
class Turn {
 public:
  bool take() { return !taken_.exchange(true); }
  bool taken() const { return taken_.load(); }
  // The timer that is to end the wait, and need not any more once it has ended; 0: none.
  void set_timer(uint64_t timer) { timer_ = timer; }
  uint64_t timer() const { return timer_.load(); }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<uint64_t> timer_{0};
};

// One request on its way through the server. Its life: parsed (on the transport's thread) -> its target found
// -> admitted to its context -> its turn in a queue -> running -> ended, by finish() or fail(), once.
class ServedCall : public ServerCall, public std::enable_shared_from_this<ServedCall> {
 public:
  // The parts of its agent that it uses. It keeps the agent.
  struct Parts {
    AgentRuntime& runtime;
    RRefService& rrefs;
    ServedCalls& calls;
    CalleeCost& fetch_cost;
  };
  ServedCall(const Parts& parts, std::shared_ptr<Agent> agent, IncomingCall incoming);
  // A call that nobody ended fails with Internal.
  ~ServedCall() override;

  Agent& agent() const override { return *agent_; }
  const std::shared_ptr<Executor>& executor() const override { return executor_; }
  const std::string& callee() const override { return callee_; }
  const IncomingPayload& arguments() const override { return arguments_; }
  const std::shared_ptr<void>& target() const override { return target_.value; }
  const TypeOps* target_type() const override { return target_.type; }
  void finish(std::shared_ptr<void> value, const TypeOps* type) override;
  void fail(absl::Status status) override;
  void release_arguments() override;
  void finish_later() override { state_ = ExecutionState::capture(); }

  const IncomingCall& incoming() const { return incoming_; }
  // The cost of calls of this callee; nullptr where it is unknown.
  TaskCost* cost() const { return cost_; }

  // Its wait for its object, and for its turn on it.
  Turn& search() { return search_; }
  Turn& turn() { return turn_; }
  void set_target(OwnedValue target) { target_ = std::move(target); }
  // Called once when the call has ended.
  void on_ended(absl::AnyInvocable<void()> callback) { on_ended_ = std::move(callback); }

  // Decodes and runs the callee; on an executor thread, in the clean state.
  void run();

 private:
  void decode_and_serve();
  void dispatch();
  void finish_in_state(std::shared_ptr<void> value, const TypeOps* type);
  absl::Status encode_result(std::shared_ptr<void> value, const TypeOps* type, proto::Response& response,
                             std::vector<transport::Buffer>& buffers);
  void answer(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers);
  // The result never left: takes back what it carried.
  void undo(const proto::Payload& result);

  // Set once. The agent keeps what the parts refer to.
  const std::shared_ptr<Agent> agent_;
  const Parts& parts_;
  IncomingCall incoming_;
  const std::shared_ptr<Executor> executor_;
  const std::string callee_;
  CalleeKind kind_ = CalleeKind::kFunction;
  const Callee* registered_ = nullptr;
  TaskCost* cost_ = nullptr;

  // Used by the thread that has the call now.
  IncomingPayload arguments_;
  OwnedValue target_;
  // The state in which the handler ran (agent, call, context), for a call that ends later.
  ExecutionState state_;
  absl::AnyInvocable<void()> on_ended_;

  // Synchronised by themselves.
  std::atomic<bool> ended_{false};
  Turn search_;
  Turn turn_;
};

}  // namespace gradwire::rpc
