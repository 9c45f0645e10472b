// What a pass says to other workers, and what becomes of the answers.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/joints.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/autograd/pass/pass.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/torch_tensors.h"

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

std::vector<Pass::WaveMessage> Pass::wave_messages(const LocalExecutor::Reach& reach) {
  std::vector<WaveMessage> messages;
  const auto add = [&](uint64_t to, bool needed, uint64_t message, const std::vector<uint32_t>& outputs) {
    auto found = std::find_if(messages.begin(), messages.end(), [&](const WaveMessage& each) {
      return each.to == to && each.needed == needed;
    });
    if (found == messages.end()) found = messages.insert(messages.end(), {to, needed, {}});
    proto::SentTensors& tensors = *found->tensors.Add();
    tensors.set_message(message);
    tensors.mutable_outputs()->Add(outputs.begin(), outputs.end());
  };
  for (const LocalExecutor::Reached& each : reach.marked) {
    add(each.node->sender().incarnation, false, each.node->message(), each.outputs);
  }
  for (const LocalExecutor::Needed& each : reach.needed) {
    add(each.node->receiver(), true, each.node->message(), each.outputs);
  }
  return messages;
}

std::vector<uint64_t> Pass::receivers_of(const std::vector<WaveMessage>& messages) {
  std::vector<uint64_t> receivers;
  for (const WaveMessage& message : messages) receivers.push_back(message.to);
  return receivers;
}

void Pass::send_wave(std::vector<WaveMessage> messages, const std::vector<uint64_t>& numbers) {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return abort(agent_gone());
  // No numbers: the pass has ended.
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const uint64_t number = numbers[i];
    absl::StatusOr<rpc::Worker> to = agent->find_worker_by_incarnation(messages[i].to);
    if (!to.ok()) {
      return abort(absl::UnavailableError(absl::StrCat("a worker was lost: ", to.status().message())));
    }
    std::string body;
    if (messages[i].needed) {
      proto::Needed needed;
      *needed.mutable_pass() = header_;
      needed.set_number(number);
      needed.mutable_needed()->Swap(&messages[i].tensors);
      body = needed.SerializeAsString();
    } else {
      proto::Mark mark;
      *mark.mutable_pass() = header_;
      mark.set_number(number);
      mark.mutable_marked()->Swap(&messages[i].tensors);
      body = mark.SerializeAsString();
    }
    agent
        ->call_service(*to, messages[i].needed ? kNeededService : kMarkService, std::move(body), nullptr,
                       {.deadline = deadline_, .repeat = true})
        .on_ready_inline([self = shared_from_this(), number,
                          name = to->name](const absl::StatusOr<rpc::ServiceReply>& reply) {
          absl::StatusOr<proto::PassAnswer> answer = read(reply, "backward at", name);
          self->on_answer(answer, [&](PassState& state, PassState::Actions& actions) {
            state.mark_answered(number, {answer->participants().begin(), answer->participants().end()},
                                actions);
          });
        });
  }
}

// On any thread: what must not happen there waits (perform()).
void Pass::on_answer(const absl::StatusOr<proto::PassAnswer>& answer,
                     absl::FunctionRef<void(PassState&, PassState::Actions&)> event) {
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (answer.ok()) {
      event(state_, actions);
    } else {
      state_.fail(answer.status(), actions);
    }
  }
  perform(std::move(actions), /*on_executor=*/false);
}

void Pass::write_header(uint64_t to, proto::Pass& out) const {
  out = header_;
  if (const Onward* part = plan_.part_of(to); part != nullptr) to_proto(*part, *out.mutable_plan());
}

void Pass::ship(const RecvNode& node, torch::autograd::variable_list gradients) {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return abort(agent_gone());
  proto::Run run;
  write_header(node.sender().incarnation, *run.mutable_pass());
  run.set_message(node.message());
  std::string defined((gradients.size() + 7) / 8, '\0');
  auto tensors = std::make_unique<rpc::TorchTensors>();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    defined[i / 8] = static_cast<char>(static_cast<uint8_t>(defined[i / 8]) | 1u << (i % 8));
    tensors->add(std::move(gradients[i]), /*give_away=*/true);
  }
  run.set_defined(std::move(defined));
  if (header_.create_graph()) {
    plant_send(*context_, self_.incarnation, node.sender().incarnation, tensors->tensors,
               *run.mutable_graph());
  }
  const rpc::Worker to = node.sender();
  agent
      ->call_service(to, kRunService, run.SerializeAsString(), std::move(tensors),
                     {.deadline = deadline_, .repeat = true})
      .on_ready_inline([self = shared_from_this(), to](const absl::StatusOr<rpc::ServiceReply>& reply) {
        // The answer to the root of a planned pass is that to FINISH, and comes when that part has ended.
        const bool finished = self->header_.planned() && self->id_.origin == self->self_.incarnation &&
                              to.incarnation != self->self_.incarnation;
        self->on_answer(read(reply, "shipping gradients to", to.name),
                        [&](PassState& state, PassState::Actions& actions) {
                          state.shipping_answered(to.incarnation, actions);
                          if (finished) state.finish_answered(to.incarnation, {}, actions);
                        });
      });
}

void Pass::send_finish(uint64_t incarnation) {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) return abort(agent_gone());
  absl::StatusOr<rpc::Worker> to = agent->find_worker_by_incarnation(incarnation);
  if (!to.ok())
    return abort(absl::UnavailableError(absl::StrCat("a worker was lost: ", to.status().message())));
  proto::Finish finish;
  write_header(incarnation, *finish.mutable_pass());
  agent
      ->call_service(*to, kFinishService, finish.SerializeAsString(), nullptr,
                     {.deadline = deadline_, .repeat = true})
      .on_ready_inline([self = shared_from_this(), incarnation,
                        name = to->name](const absl::StatusOr<rpc::ServiceReply>& reply) {
        absl::StatusOr<proto::PassAnswer> answer = read(reply, "backward at", name);
        self->on_answer(answer, [&](PassState& state, PassState::Actions& actions) {
          state.finish_answered(incarnation, {answer->shipped_to().begin(), answer->shipped_to().end()},
                                actions);
        });
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

void Pass::perform(PassState::Actions actions, bool on_executor) {
  std::vector<std::pair<Reply, rpc::ServiceReply>> replies;
  std::shared_ptr<LocalExecutor> graph;
  {
    MutexLock lock(mutex_);
    auto owe = [&](uint64_t number, rpc::ServiceReply answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
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
    if (actions.ended) spent_ = std::move(executor_);
    if (on_executor) graph = std::move(spent_);
  }
  // With the graph go objects of the user's: not under the lock.
  graph.reset();
  // Before anybody hears of the end, so that whoever does finds everything in its place.
  if (actions.ended) part_ended_.store(true, std::memory_order_release);
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
    tell_waiting();
  }
}

}  // namespace gradwire::autograd
