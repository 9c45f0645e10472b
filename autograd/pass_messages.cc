// What a pass says to other workers, and what becomes of the answers.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "autograd/pass.h"
#include "autograd/services.h"
#include "base/clock.h"
#include "base/error.h"
#include "rpc/codec_containers.h"
#include "rpc/torch_tensors.h"

namespace gradwire::autograd {
namespace {

// How long a worker that should abort a pass is told so; if it cannot be, it is as good as lost.
constexpr absl::Duration kAbortTimeout = absl::Seconds(30);

// What came back to MARK, RUN or FINISH: the answer, or why the pass has failed there.
absl::StatusOr<proto::PassAnswer> read(const absl::StatusOr<rpc::ServiceReply>& reply,
                                       const std::string& what, const std::string& worker) {
  absl::Status status = reply.status();
  proto::PassAnswer answer;
  if (status.ok() && !answer.ParseFromString(reply->body))
    status = absl::InternalError("the answer is garbage");
  if (status.ok() && answer.has_failure()) status = rpc::status_from_proto(answer.failure());
  if (status.ok()) return answer;
  return with_context(status, absl::StrCat(what, " \"", worker, "\""));
}

rpc::ServiceReply failure(const absl::Status& status) {
  proto::PassAnswer answer;
  rpc::status_to_proto(status, *answer.mutable_failure());
  return {answer.SerializeAsString(), nullptr};
}

const absl::Status& agent_gone() {
  static const auto* status = new absl::Status(absl::FailedPreconditionError("the agent has shut down"));
  return *status;
}

}  // namespace

void Pass::send_marks(const LocalExecutor::Reach& reach, const std::vector<uint64_t>& numbers) {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return abort(agent_gone());
  // No numbers: the pass has ended.
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const RecvNode& node = *reach[i].node;
    const uint64_t number = numbers[i];
    proto::Mark mark;
    *mark.mutable_pass() = header_;
    mark.set_number(number);
    mark.set_message(node.message());
    for (uint32_t output : reach[i].outputs) mark.add_outputs(output);
    agent
        ->call_service(node.sender(), kMarkService, mark.SerializeAsString(), nullptr,
                       {.deadline = deadline_, .repeat = true})
        .on_ready([self = shared_from_this(), number,
                   to = node.sender().name](const absl::StatusOr<rpc::ServiceReply>& reply) {
          absl::StatusOr<proto::PassAnswer> answer = read(reply, "backward at", to);
          if (!answer.ok()) return self->abort(answer.status());
          PassState::Actions actions;
          {
            MutexLock lock(self->mutex_);
            self->state_.mark_answered(number, {answer->participants().begin(), answer->participants().end()},
                                       actions);
          }
          self->perform(std::move(actions));
        });
  }
}

void Pass::ship(const RecvNode& node, torch::autograd::variable_list gradients) {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return abort(agent_gone());
  proto::Run run;
  *run.mutable_pass() = header_;
  run.set_message(node.message());
  std::string defined((gradients.size() + 7) / 8, '\0');
  auto tensors = std::make_unique<rpc::TorchTensors>();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    defined[i / 8] = static_cast<char>(static_cast<uint8_t>(defined[i / 8]) | 1u << (i % 8));
    tensors->add(std::move(gradients[i]), /*give_away=*/true);
  }
  run.set_defined(std::move(defined));
  const rpc::Worker to = node.sender();
  agent
      ->call_service(to, kRunService, run.SerializeAsString(), std::move(tensors),
                     {.deadline = deadline_, .repeat = true})
      .on_ready([self = shared_from_this(), to](const absl::StatusOr<rpc::ServiceReply>& reply) {
        absl::StatusOr<proto::PassAnswer> answer = read(reply, "shipping gradients to", to.name);
        if (!answer.ok()) return self->abort(answer.status());
        PassState::Actions actions;
        {
          MutexLock lock(self->mutex_);
          self->state_.shipping_answered(to.incarnation, actions);
        }
        self->perform(std::move(actions));
      });
}

void Pass::send_finish(uint64_t incarnation) {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return abort(agent_gone());
  absl::StatusOr<rpc::Worker> to = agent->find_worker_by_incarnation(incarnation);
  if (!to.ok())
    return abort(absl::UnavailableError(absl::StrCat("a worker was lost: ", to.status().message())));
  proto::Finish finish;
  *finish.mutable_pass() = header_;
  agent
      ->call_service(*to, kFinishService, finish.SerializeAsString(), nullptr,
                     {.deadline = deadline_, .repeat = true})
      .on_ready([self = shared_from_this(), incarnation,
                 name = to->name](const absl::StatusOr<rpc::ServiceReply>& reply) {
        absl::StatusOr<proto::PassAnswer> answer = read(reply, "backward at", name);
        if (!answer.ok()) return self->abort(answer.status());
        PassState::Actions actions;
        {
          MutexLock lock(self->mutex_);
          self->state_.finish_answered(incarnation,
                                       {answer->shipped_to().begin(), answer->shipped_to().end()}, actions);
        }
        self->perform(std::move(actions));
      });
}

void Pass::send_abort(uint64_t incarnation, const absl::Status& reason) {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return;
  absl::StatusOr<rpc::Worker> to = agent->find_worker_by_incarnation(incarnation);
  if (!to.ok()) return;
  proto::Abort abort;
  *abort.mutable_pass() = header_;
  rpc::status_to_proto(reason, *abort.mutable_reason());
  agent
      ->call_service(*to, kAbortService, abort.SerializeAsString(), nullptr,
                     {.deadline = Clock::system().now() + kAbortTimeout, .repeat = true})
      .on_ready_inline([](const auto&) {});
}

void Pass::reply_to_run(const Reply& reply, const absl::Status& status) {
  reply(status.ok() ? rpc::ServiceReply() : failure(status));
}

void Pass::perform(PassState::Actions actions) {
  std::vector<std::pair<Reply, rpc::ServiceReply>> replies;
  std::shared_ptr<LocalExecutor> graph;
  {
    MutexLock lock(mutex_);
    auto owe = [&](uint64_t number, rpc::ServiceReply answer) {
      auto found = replies_.find(number);
      if (found == replies_.end()) return;
      replies.emplace_back(std::move(found->second), std::move(answer));
      replies_.erase(found);
    };
    for (const auto& each : actions.mark_answers) {
      proto::PassAnswer answer;
      answer.mutable_participants()->Add(each.participants.begin(), each.participants.end());
      owe(each.reply, rpc::ServiceReply{answer.SerializeAsString(), nullptr});
    }
    for (const auto& each : actions.finish_answers) {
      proto::PassAnswer answer;
      answer.mutable_shipped_to()->Add(each.shipped_to.begin(), each.shipped_to.end());
      owe(each.reply, rpc::ServiceReply{answer.SerializeAsString(), nullptr});
    }
    for (uint64_t number : actions.failed_replies) owe(number, failure(actions.status));
    if (actions.ended) graph = std::move(executor_);
  }
  // With the graph go objects of the user's: not under the lock.
  graph.reset();
  // Before anybody hears of the end, so that whoever does finds everything in its place.
  if (actions.ended) ended_(actions.status);
  for (auto& [reply, answer] : replies) reply(std::move(answer));
  for (uint64_t worker : actions.abort) send_abort(worker, actions.status);
  if (actions.start_run) wave_over_.set_value();
  for (uint64_t worker : actions.finish) send_finish(worker);
  if (actions.ended && id_.origin == self_.incarnation) {
    if (actions.status.ok()) {
      completion_.set_value();
    } else {
      wave_over_.set_error(actions.status);
      completion_.set_error(actions.status);
    }
  }
}

}  // namespace gradwire::autograd
