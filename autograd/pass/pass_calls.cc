#include "gradwire/autograd/pass/pass_calls.h"

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent/agent_services.h"

namespace gradwire::autograd {
namespace {

// Limit for sending an ABORT. A worker that cannot be reached in that time is regarded as lost.
constexpr absl::Duration kAbortTimeout = absl::Seconds(30);

proto::Finish in_finish(proto::Pass header) {
  proto::Finish finish;
  *finish.mutable_pass() = std::move(header);
  return finish;
}

}  // namespace

PassCalls::PassCalls(Options options)
    : agent_(std::move(options.agent)),
      self_(std::move(options.self)),
      header_(in_finish(std::move(options.header))),
      id_(rpc::from_proto(header().pass())),
      plan_(id_.origin),
      deadline_(options.deadline),
      parent_(options.parent) {
  if (!header().planned()) return;
  // A malformed plan stays empty. KnownMarks::begin() then reports that this worker's tensors are missing.
  if (std::optional<GradientRoute> part = gradient_route_from_proto(header().plan()))
    plan_.add(*std::move(part));
  header_.mutable_pass()->clear_plan();
}

void PassCalls::set_plan(Plan plan) {
  plan_ = std::move(plan);
  header_.mutable_pass()->set_planned(true);
}

absl::Status PassCalls::agent_gone() { return absl::FailedPreconditionError("the agent has shut down"); }

absl::StatusOr<rpc::Worker> PassCalls::find(uint64_t incarnation) const {
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return agent_gone();
  absl::StatusOr<rpc::Worker> worker = agent->services().find_worker_by_incarnation(incarnation);
  if (worker.ok()) return worker;
  return absl::UnavailableError(
      absl::StrCat("cannot reach a worker of the backward pass: ", worker.status().message()));
}

std::string PassCalls::with_header(uint64_t to, const google::protobuf::MessageLite& message) const {
  // Problem: the header must be in every message, but copying it into each message before serialization is
  // slow. The header is field 1 of every message, and protobuf parsers merge a field that occurs more than
  // once. Therefore three serialized texts are concatenated: the common header, a header with the part of the
  // plan, and the message itself.
  std::string text = header_.SerializeAsString();
  if (const GradientRoute* part = plan_.part_of(to); part != nullptr) {
    std::call_once(parts_written_, [this] {
      for (const GradientRoute& each : plan_.parts()) {
        proto::Finish finish;
        to_proto(each, *finish.mutable_pass()->mutable_plan());
        parts_.push_back(finish.SerializeAsString());
      }
    });
    text += parts_[part - plan_.parts().data()];
  }
  message.AppendToString(&text);
  return text;
}

void PassCalls::send_abort(uint64_t incarnation, const absl::Status& reason) const {
  const absl::StatusOr<rpc::Worker> to = find(incarnation);
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (!to.ok() || agent == nullptr) return;
  proto::Abort abort;
  *abort.mutable_pass() = header();
  rpc::status_to_proto(reason, *abort.mutable_reason());
  agent->services()
      .call_service(*to, kAbortService, abort.SerializeAsString(), nullptr,
                    {.deadline = Clock::system().now() + kAbortTimeout, .repeat = true})
      .on_ready_inline([](const auto&) {});
}

// An error of the pass is a field of the answer and not the status of the call: a call that fails with
// Unavailable would be repeated.
absl::StatusOr<proto::PassAnswer> PassCalls::read_answer(const absl::StatusOr<rpc::ServiceReply>& reply,
                                                         const char* what, const std::string& worker) {
  absl::Status status = reply.status();
  proto::PassAnswer answer;
  if (status.ok() && !answer.ParseFromString(reply->body))
    status = absl::InternalError("cannot parse the answer to a message of the backward pass");
  if (status.ok() && answer.has_failure()) status = rpc::status_from_proto(answer.failure());
  if (status.ok()) return answer;
  return with_context(status, absl::StrCat(what, " \"", worker, "\""));
}

rpc::ServiceReply PassCalls::failure(const absl::Status& status) {
  proto::PassAnswer answer;
  rpc::status_to_proto(status, *answer.mutable_failure());
  return {answer.SerializeAsString(), nullptr};
}

}  // namespace gradwire::autograd
