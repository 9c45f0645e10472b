#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "gradwire/autograd/pass/plan.h"
#include "gradwire/codec/id.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/agent/agent_services.h"
#include "gradwire/rpc/flight/call_parent.h"

namespace gradwire::autograd {

// Sends the messages of one worker's part of a pass, and holds the header that all messages of the pass have
// in common. Thread-safe, except set_plan(), which the root may call before the first message.
class PassCalls {
 public:
  struct Options {
    std::weak_ptr<rpc::Agent> agent;
    rpc::Worker self;
    proto::Pass header;
    // The deadline of every call.
    absl::Time deadline;
    // At the root: the call whose handler began the pass, or a pass, or nothing.
    rpc::CallParent parent;
  };
  explicit PassCalls(Options options);

  // The header without the plan.
  const proto::Pass& header() const { return header_.pass(); }
  const rpc::Id& id() const { return id_; }
  const rpc::Worker& self() const { return self_; }
  const rpc::CallParent& parent() const { return parent_; }
  absl::Time deadline() const { return deadline_; }
  std::shared_ptr<rpc::Agent> agent() const { return agent_.lock(); }
  bool is_root() const { return id_.origin == self_.incarnation; }
  // Whether a RUN of this pass is a FINISH too, which is answered when the receiver's part has ended: a RUN
  // from the root in a planned pass is.
  bool run_is_finish(uint64_t from, uint64_t to) const {
    return header().planned() && from == id_.origin && to != from;
  }

  // At the root the whole plan; on another worker the part of the plan that it received.
  const Plan& plan() const { return plan_; }
  // Must be called at the root, before the first message.
  void set_plan(Plan plan);

  // Unavailable if the worker was lost.
  absl::StatusOr<rpc::Worker> find(uint64_t incarnation) const;
  // Sends `message`, to which it adds the header. Unless send() returns an error, `answered` is called once,
  // on any thread, with the proto::PassAnswer or with the error of the pass on that worker. The error's
  // message begins with `what` and the worker's name. `destinations`: the receiver's device for each tensor.
  template <class Answered>
  absl::Status send(const rpc::Worker& to, uint32_t service, const google::protobuf::MessageLite& message,
                    std::unique_ptr<rpc::TensorSet> tensors, std::vector<rpc::Device> destinations,
                    const char* what, Answered answered) const {
    const std::shared_ptr<rpc::Agent> agent = agent_.lock();
    if (agent == nullptr) return agent_gone();
    const rpc::ParentScope pass(rpc::CallParent::pass(id_.origin, id_.counter));
    agent->services()
        .call_service(to, service, with_header(to.incarnation, message), std::move(tensors),
                      {.deadline = deadline_, .repeat = true, .destinations = std::move(destinations)})
        .on_ready_inline([what, name = to.name,
                          answered = std::move(answered)](const absl::StatusOr<rpc::ServiceReply>& reply) {
          answered(read_answer(reply, what, name));
        });
    return absl::OkStatus();
  }
  void send_abort(uint64_t incarnation, const absl::Status& reason) const;

  // Makes the answer to a message of a pass that has failed here.
  static rpc::ServiceReply failure(const absl::Status& status);

 private:
  static absl::Status agent_gone();
  static absl::StatusOr<proto::PassAnswer> read_answer(const absl::StatusOr<rpc::ServiceReply>& reply,
                                                       const char* what, const std::string& worker);
  // Returns the serialized message, preceded by the header and by the part of the plan that `to` needs.
  std::string with_header(uint64_t to, const google::protobuf::MessageLite& message) const;

  const std::weak_ptr<rpc::Agent> agent_;
  const rpc::Worker self_;
  // The header, in a FINISH message, which has no other fields.
  proto::Finish header_;
  const rpc::Id id_;
  Plan plan_;
  const absl::Time deadline_;
  const rpc::CallParent parent_;

  mutable std::once_flag parts_written_;
  // For each part of the plan, a serialized header that contains only that part.
  mutable std::vector<std::string> parts_;
};

}  // namespace gradwire::autograd
