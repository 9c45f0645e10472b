#include "gradwire/autograd/pass/pass_part.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/services.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/agent/agent_services.h"
#include "gradwire/rpc/device/stream_order.h"

namespace gradwire::autograd {
namespace {

// The mutex for passes that set `.grad` of tensors (retain_grad()). It is global, because agents of one
// process may use the same tensor.
Mutex& retained_gradients() {
  static auto* const mutex = new Mutex;
  return *mutex;
}

// The executor whose tasks the thread at the root runs while it waits for the pass; nullptr without an agent.
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
      began_(Clock::system().now()),
      root_(executor_of(calls_.agent())),
      state_({.self = calls_.self().incarnation, .root = calls_.id().origin, .fast = calls_.header().fast()}),
      graph_(std::make_shared<LocalExecutor>(graph_options(calls_, context))) {}

PassState::View PassPart::view() {
  MutexLock lock(mutex_);
  PassState::View view = state_.view();
  view.busy = view.busy || running_;
  return view;
}

GraphMessages PassPart::messages(std::size_t most) {
  MutexLock lock(mutex_);
  return graph_ == nullptr ? GraphMessages() : graph_->messages(most);
}

absl::Status PassPart::with_this_worker(absl::Status status) const {
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

// Every event of the pass goes through these steps:
// 1. With the lock: change the state and the graph. The state decides which actions follow.
// 2. With the lock: move everything that the actions need out of the members (settle_locked).
// 3. Without the lock: perform the actions. They send messages, run callbacks and destroy tensors, and may
//    call update() again.
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

// Answers arrive on any thread, also on one that receives for all connections. If such a thread ends the
// part, it must not destroy the graph, because destructors of user objects could block it. The graph then
// stays in `spent_` until the next event on the executor, or until this object is destroyed.
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
  if (!worker.ok()) return abort(with_this_worker(absl::UnavailableError(worker.status().message())));
  if (absl::Status status = agent->services().worker_status(*worker); !status.ok())
    worker_lost(*worker, status);
}

void PassPart::notice_losses(uint64_t from) {
  notice_loss(from);
  if (calls_.id().origin != from) notice_loss(calls_.id().origin);
}

absl::Status PassPart::order_before_current_streams() {
  device::StreamSet streams;
  {
    MutexLock lock(mutex_);
    streams = streams_;
  }
  try {
    streams.order_before_current_streams();
  } catch (...) {
    return with_this_worker(caught("at the end of a backward pass"));
  }
  return absl::OkStatus();
}

// A step of an optimizer may follow the pass at once. It must not change parameters that nodes still read.
void PassPart::publish_streams() {
  const std::shared_ptr<rpc::Agent> agent = calls_.agent();
  if (agent == nullptr || agent->services().stream_order() == nullptr) return;
  {
    // A pass on the CPU has nothing to publish.
    MutexLock lock(mutex_);
    if (streams_.empty()) return;
  }
  const std::unique_ptr<rpc::StreamScope> streams = rpc::tensor_backend()->enter_pool_streams();
  // Later work on a device that is lost fails by itself.
  (void)order_before_current_streams();
  agent->services().stream_order()->add();
}

void PassPart::run_nodes(Keep keep, Ship ship) {
  // Nodes, `keep` and `ship` must run without the lock, and only one thread may run nodes at a time. The
  // thread that sets `running_` is the one; another thread returns at once, because the first one also runs
  // the nodes that become ready later. The lock is released and taken again around each call.
  Effects effects;
  PassState::Actions& actions = effects.actions;
  // Nodes and hooks may call other workers.
  const rpc::ParentScope pass(rpc::CallParent::pass(calls_.id().origin, calls_.id().counter));
  mutex_.lock();
  if (!running_) {
    running_ = true;
    while (!state_.ended()) {
      std::optional<LocalExecutor::Task> task = graph_->next();
      if (!task) break;
      // This reference keeps the graph alive if the pass is aborted while the node runs.
      std::shared_ptr<LocalExecutor> graph = graph_;
      mutex_.unlock();
      absl::Status status = graph->run(*task);
      if (status.ok()) {
        const c10::OptionalStreamGuard current(task->stream());
        status = keep(*task);
      }
      mutex_.lock();
      if (status.ok() && !state_.ended()) {
        try {
          graph->finished(*task);
        } catch (...) {
          status = caught("adding up gradients");
        }
      }
      if (!status.ok() && !state_.ended()) state_.fail(with_this_worker(status), actions);
      if (!status.ok() || state_.ended()) {
        mutex_.unlock();
        // The graph is released without the lock, because its destructor may destroy user objects.
        task.reset();
        graph.reset();
        mutex_.lock();
        break;
      }
      if (task->recv != nullptr) {
        state_.shipping(task->recv->sender().incarnation);
        state_.ran(1, actions);
        mutex_.unlock();
        {
          const c10::OptionalStreamGuard current(task->stream());
          ship(*task->recv, std::move(task->outputs));
        }
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

// Each owed reply is moved out of `replies_` once, so it is sent exactly once. The numbers that the state
// returns are always in the map, unless a reply was already taken.
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
  if (actions.ended) {
    streams_ = graph_->streams();
    spent_ = std::move(graph_);
  }
  if (on_executor) effects.graph = std::move(spent_);
}

// 1. Destroy the graph, so that the tensors of the pass are free when backward() returns.
// 2. Record and report the end. A trainer whose backward() has returned then does not count as forwarding at
//    the step barrier.
// 3. Send the replies that are owed, and ABORT to the workers that were reached.
// 4. At the root: let the run begin, and send FINISH.
// 5. Wake the root's thread last. It may release the context at once.
void PassPart::perform(Effects& effects) {
  const PassState::Actions& actions = effects.actions;
  effects.graph.reset();
  // The order matters: the graph is destroyed and the end recorded before any other party learns of the end.
  if (actions.ended) {
    publish_streams();
    part_ended_.store(true, std::memory_order_release);
  }
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
        *to, kFinishService, proto::Finish(), nullptr, {}, "backward at",
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
