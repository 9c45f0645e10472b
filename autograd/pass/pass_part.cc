#include "gradwire/autograd/pass/pass_part.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent/agent_services.h"

namespace gradwire::autograd {
namespace {

// A tensor's `.grad` belongs to no agent: whatever passes set it take turns.
Mutex& retained_gradients() {
  static auto* const mutex = new Mutex;
  return *mutex;
}

// Whoever waits for the pass serves the agent meanwhile.
std::shared_ptr<Executor> executor_of(const std::shared_ptr<rpc::Agent>& agent) {
  return agent == nullptr ? nullptr : agent->executor();
}

LocalExecutor::Options graph_options(const PassCalls& calls, const ContextState& context) {
  const proto::Pass& header = calls.header();
  return {.context = context.id,
          .self = calls.self().incarnation,
          .retain_graph = header.retain_graph(),
          .sum_as_they_arrive = header.sum_as_they_arrive(),
          .timeline = std::shared_ptr<const Timeline>(context.active, &context.active->timeline()),
          .inputs_only = header.inputs_only(),
          .anomaly = header.anomaly(),
          .check_nan = header.check_nan(),
          .retained_gradients = &retained_gradients()};
}

}  // namespace

PassPart::PassPart(PassCalls::Options calls, const ContextState& context, Ended ended)
    : calls_(std::move(calls)),
      ended_(std::move(ended)),
      root_(executor_of(calls_.agent())),
      state_({.self = calls_.self().incarnation, .root = calls_.id().origin, .fast = calls_.header().fast()}),
      graph_(std::make_shared<LocalExecutor>(graph_options(calls_, context))) {}

absl::Status PassPart::here(absl::Status status) const {
  return with_worker(std::move(status), calls_.self().name);
}

uint64_t PassPart::owe_locked(const PassReply& reply) {
  replies_.emplace(next_reply_, reply);
  return next_reply_++;
}

void PassPart::Locked::begin_run() {
  if (!part.calls_.header().inputs_only() || graph == nullptr) return;
  graph->begin_run();
  count();
}

void PassPart::update(Event event, bool on_executor) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    Locked locked{state_, graph_.get(), effects.actions, *this};
    event(locked);
    settle_locked(effects, on_executor);
  }
  perform(effects);
}

void PassPart::answered(const absl::StatusOr<proto::PassAnswer>& answer, Event event) {
  update(
      [&](Locked& locked) {
        answer.ok() ? event(locked) : locked.state.fail(answer.status(), locked.actions);
      },
      /*on_executor=*/false);
}

void PassPart::abort(const absl::Status& reason) {
  update([&](Locked& locked) { locked.state.fail(reason, locked.actions); });
}

void PassPart::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  const absl::Status lost(
      reason.code(),
      absl::StrCat("worker \"", worker.name, "\" was lost during the backward pass of the autograd context ",
                   rpc::to_string(rpc::from_proto(calls_.header().context())), ": ", reason.message()));
  update([&](Locked& locked) {
    locked.state.worker_lost(worker.incarnation, with_worker(lost, worker.name), locked.actions);
  });
}

void PassPart::notice_loss(uint64_t incarnation) {
  const std::shared_ptr<rpc::Agent> agent = calls_.agent();
  if (agent == nullptr || incarnation == calls_.self().incarnation) return;
  absl::StatusOr<rpc::Worker> worker = agent->services().find_worker_by_incarnation(incarnation);
  if (!worker.ok()) return abort(here(absl::UnavailableError(worker.status().message())));
  if (absl::Status status = agent->services().worker_status(*worker); !status.ok())
    worker_lost(*worker, status);
}

void PassPart::notice_losses(uint64_t from) {
  notice_loss(from);
  if (calls_.id().origin != from) notice_loss(calls_.id().origin);
}

void PassPart::run_nodes(Keep keep, Ship ship) {
  Effects effects;
  PassState::Actions& actions = effects.actions;
  mutex_.lock();
  if (!running_) {
    running_ = true;
    while (!state_.ended()) {
      std::optional<LocalExecutor::Task> task = graph_->next();
      if (!task) break;
      // The pass may be aborted, and let go of the graph, while the node runs.
      std::shared_ptr<LocalExecutor> graph = graph_;
      mutex_.unlock();
      absl::Status status = graph->run(*task);
      if (status.ok()) status = keep(*task);
      mutex_.lock();
      if (status.ok() && !state_.ended()) {
        try {
          graph->finished(*task);
        } catch (...) {
          status = with_context(status_from_exception(std::current_exception()), "adding up gradients");
        }
      }
      if (!status.ok() && !state_.ended()) state_.fail(here(status), actions);
      if (!status.ok() || state_.ended()) {
        mutex_.unlock();
        // Here and not under the lock: with the graph go objects of the user's.
        task.reset();
        graph.reset();
        mutex_.lock();
        break;
      }
      if (task->recv != nullptr) {
        state_.shipping(task->recv->sender().incarnation);
        state_.ran(1, actions);
        mutex_.unlock();
        ship(*task->recv, std::move(task->outputs));
        mutex_.lock();
      } else {
        state_.ran(1, actions);
      }
    }
    running_ = false;
  }
  settle_locked(effects, /*on_executor=*/true);
  mutex_.unlock();
  perform(effects);
}

void PassPart::settle_locked(Effects& effects, bool on_executor) {
  const PassState::Actions& actions = effects.actions;
  auto owe = [&](uint64_t number, rpc::ServiceReply answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto found = replies_.find(number);
    if (found == replies_.end()) return;
    effects.replies.emplace_back(std::move(found->second), std::move(answer));
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
  for (uint64_t number : actions.failed_replies) owe(number, PassCalls::failure(actions.status));
  if (actions.ended) spent_ = std::move(graph_);
  if (on_executor) effects.graph = std::move(spent_);
}

void PassPart::perform(Effects& effects) {
  const PassState::Actions& actions = effects.actions;
  effects.graph.reset();
  // This comes before the end is reported, so that everything is in place by then.
  if (actions.ended) part_ended_.store(true, std::memory_order_release);
  if (actions.ended) ended_(actions.status);
  for (auto& [reply, answer] : effects.replies) reply(std::move(answer));
  for (uint64_t worker : actions.abort) calls_.send_abort(worker, actions.status);
  if (actions.start_run) root_.begin_run();
  for (uint64_t worker : actions.finish) send_finish(worker);
  if (actions.ended && calls_.is_root()) root_.end(actions.status);
}

void PassPart::send_finish(uint64_t incarnation) {
  const absl::StatusOr<rpc::Worker> to = calls_.find(incarnation);
  absl::Status sent = to.status();
  if (sent.ok()) {
    sent = calls_.send(
        *to, kFinishService, proto::Finish(), nullptr, "backward at",
        [self = shared_from_this(), incarnation](const absl::StatusOr<proto::PassAnswer>& answer) {
          self->answered(answer, [&](Locked& locked) {
            locked.state.finish_answered(
                incarnation, {answer->shipped_to().begin(), answer->shipped_to().end()}, locked.actions);
          });
        });
  }
  if (!sent.ok()) abort(sent);
}

}  // namespace gradwire::autograd
