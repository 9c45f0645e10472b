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

namespace gradwire::autograd {

// How one worker's part of a pass calls other workers, and the header that all messages of the pass have in
// common. Thread-safe from the first message on; before, the root may set the plan.
class PassCalls {
 public:
  struct Options {
    std::weak_ptr<rpc::Agent> agent;
    rpc::Worker self;
    proto::Pass header;
    // The deadline of every call.
    absl::Time deadline;
  };
  explicit PassCalls(Options options);

  // Without the plan.
  const proto::Pass& header() const { return header_.pass(); }
  const rpc::Id& id() const { return id_; }
  const rpc::Worker& self() const { return self_; }
  std::shared_ptr<rpc::Agent> agent() const { return agent_.lock(); }
  bool is_root() const { return id_.origin == self_.incarnation; }
  // The RUN from the root of a planned pass is a FINISH too: its answer comes when the receiver's part has
  // ended.
  bool run_is_finish(uint64_t from, uint64_t to) const {
    return header().planned() && from == id_.origin && to != from;
  }

  // At the root the whole plan, elsewhere the part that came.
  const Plan& plan() const { return plan_; }
  // At the root, before the first message.
  void set_plan(Plan plan);

  // Unavailable when the worker was lost.
  absl::StatusOr<rpc::Worker> find(uint64_t incarnation) const;
  // Sends `message`, whose header is left out. `answered` gets the proto::PassAnswer, or why the pass has
  // failed there, on any thread and unless an error is returned. `what` begins the message of such a failure
  // and names no worker.
  template <class Answered>
  absl::Status send(const rpc::Worker& to, uint32_t service, const google::protobuf::MessageLite& message,
                    std::unique_ptr<rpc::TensorSet> tensors, const char* what, Answered answered) const {
    const std::shared_ptr<rpc::Agent> agent = agent_.lock();
    if (agent == nullptr) return agent_gone();
    agent->services()
        .call_service(to, service, with_header(to.incarnation, message), std::move(tensors),
                      {.deadline = deadline_, .repeat = true})
        .on_ready_inline([what, name = to.name,
                          answered = std::move(answered)](const absl::StatusOr<rpc::ServiceReply>& reply) {
          answered(read_answer(reply, what, name));
        });
    return absl::OkStatus();
  }
  void send_abort(uint64_t incarnation, const absl::Status& reason) const;

  // The answer to a message of the pass that has failed here.
  static rpc::ServiceReply failure(const absl::Status& status);

 private:
  static absl::Status agent_gone();
  static absl::StatusOr<proto::PassAnswer> read_answer(const absl::StatusOr<rpc::ServiceReply>& reply,
                                                       const char* what, const std::string& worker);
  // The serialized message, with the header, and what `to` has to know of the plan, before it.
  std::string with_header(uint64_t to, const google::protobuf::MessageLite& message) const;

  const std::weak_ptr<rpc::Agent> agent_;
  const rpc::Worker self_;
  // In a FINISH, which has nothing else.
  proto::Finish header_;
  const rpc::Id id_;
  Plan plan_;
  const absl::Time deadline_;

  mutable std::once_flag parts_written_;
  // For each part of the plan a serialized header that has the part and nothing else.
  mutable std::vector<std::string> parts_;
};

}  // namespace gradwire::autograd
