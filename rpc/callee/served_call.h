#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/callee/registry.h"
#include "gradwire/rpc/callee/server.h"
#include "gradwire/rpc/callee/server_call.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {

// One request on its way through the server. Its life: parsed (on the transport's thread) -> its target found
// -> admitted to its context -> its turn in a queue -> running -> ended, by finish() or fail(), once.
class ServedCall : public ServerCall, public std::enable_shared_from_this<ServedCall> {
 public:
  struct Parts {
    Server* server = nullptr;
    std::shared_ptr<Agent> agent;
    Worker from;
    std::shared_ptr<Link> link;
    EnvelopePtr envelope;
    std::vector<transport::Buffer> buffers;
    std::vector<std::shared_ptr<RRefHandle>> references;
    CancellationToken token;
    // When the request arrived, on Clock::system(). Its deadline and its age count from here.
    absl::Time arrived;
  };
  explicit ServedCall(Parts parts);
  // A call that nobody ended fails with Internal.
  ~ServedCall() override;

  Agent& agent() const override { return *parts_.agent; }
  const std::shared_ptr<Executor>& executor() const override { return executor_; }
  const std::string& callee() const override { return callee_; }
  const IncomingPayload& arguments() const override { return arguments_; }
  const std::shared_ptr<void>& target() const override { return target_.value; }
  const TypeOps* target_type() const override { return target_.type; }
  void finish(std::shared_ptr<void> value, const TypeOps* type) override;
  void fail(absl::Status status) override;
  void release_arguments() override;
  void finish_later() override { state_ = ExecutionState::capture(); }

  const proto::Request& request() const { return (*parts_.envelope)->request(); }
  const Worker& from() const { return parts_.from; }
  // The one that it came in on first.
  const Link& link() const { return *parts_.link; }
  const CancellationToken& token() const { return parts_.token; }
  const std::shared_ptr<Link>& shared_link() const { return parts_.link; }
  // Whether the same request may come again.
  bool is_repeatable() const { return request().request_id() != 0; }
  absl::Time arrived() const { return parts_.arrived; }
  absl::Time deadline() const { return deadline_; }
  // Of calls of this callee; nullptr where nothing is known.
  TaskCost* cost() const { return cost_; }

  // Whether the call still waits for its object. What ends that, says stop_waiting(), and goes on if it was the first.
  bool waits() const { return waits_.load(); }
  bool stop_waiting() { return waits_.exchange(false); }
  // Whether the call's turn on its object is still to come. What ends that, the turn or the call's time, says
  // take_turn(), and goes on if it was the first. `timer`: what is to end it, and need not any more once it has ended.
  bool take_turn() { return !had_turn_.exchange(true); }
  void set_turn_timer(uint64_t timer) { turn_timer_ = timer; }
  uint64_t turn_timer() const { return turn_timer_.load(); }
  bool had_turn() const { return had_turn_.load(); }
  void set_target(RRefService::Owned target) { target_ = std::move(target); }
  // Called once when the call has ended.
  void on_ended(absl::AnyInvocable<void()> callback) { on_ended_ = std::move(callback); }

  // Decodes and runs the callee; on an executor thread, in the clean state.
  void run();

 private:
  void decode_and_serve();
  // The result never left: takes back what it carried.
  void undo(const proto::Payload& result);
  // A method must be called on an object of its class.
  absl::Status check_object(const Callee& callee) const;
  void dispatch();
  // Looks the callee up, where it is a registered one, and what it costs.
  void look_up();
  void finish_in_state(std::shared_ptr<void> value, const TypeOps* type);
  bool is_remote() const { return request().has_result_rref(); }
  bool end();
  void answer(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers);
  absl::Status encode_result(std::shared_ptr<void> value, const TypeOps* type, proto::Response& response,
                             std::vector<transport::Buffer>& buffers);

  Parts parts_;
  const absl::Time deadline_;
  const std::shared_ptr<Executor> executor_;
  const std::string callee_;
  CalleeKind kind_ = CalleeKind::kFunction;
  const Callee* registered_ = nullptr;
  TaskCost* cost_ = nullptr;
  IncomingPayload arguments_;
  RRefService::Owned target_;
  // What the handler ran in (agent, call, context), where it ends the call later.
  ExecutionState state_;
  absl::AnyInvocable<void()> on_ended_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> waits_{true};
  std::atomic<bool> had_turn_{false};
  std::atomic<uint64_t> turn_timer_{0};
};

// When the caller of a request that arrived at `arrived` stops waiting.
absl::Time deadline_of(const proto::Request& request, absl::Time arrived);

// What a request calls, for messages: the registered name, "aten::add", "fetch".
std::string callee_of(const proto::Request& request);

}  // namespace gradwire::rpc
