#include "gradwire/autograd/pass/pass_part.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/order/stream_order.h"

namespace gradwire::autograd {

void RootWait::end(const absl::Status& status) {
  if (status.ok()) {
    completion_.set_value();
  } else {
    wave_over_.set_error(status);
    completion_.set_error(status);
  }
  wake();
}

void RootWait::attend() {
  MutexLock lock(mutex_);
  attended_ = true;
}

bool RootWait::hand_over(ArrivedRun& arrived) {
  {
    MutexLock lock(mutex_);
    if (!attended_) return false;
    arrived_.push_back(std::move(arrived));
  }
  wake();
  return true;
}

// No wake-up and no RUN is lost:
// 1. end() and hand_over() first change what this function examines, and then call wake(), which takes the
//    lock.
// 2. This function examines both and stores `more_` with the lock held. So either it sees the change, or
//    wake() sees `more_`.
// 3. When it finds the end it resets `attended_` in the same critical section. A later RUN is not handed
//    over, so none stays in `arrived_`.
RootWait::Batch RootWait::take() {
  const Future<void> completion = completion_.future();
  const Promise<void> more(completion.executor());
  Batch batch{.arrived = {}, .ended = false, .more = more.future()};
  MutexLock lock(mutex_);
  batch.ended = completion.done();
  batch.arrived.swap(arrived_);
  if (batch.ended) {
    attended_ = false;
  } else if (batch.arrived.empty()) {
    more_ = more;
  }
  return batch;
}

// The promise is completed without the lock, because continuations of its future may run inside set_value().
void RootWait::wake() {
  std::optional<Promise<void>> more;
  {
    MutexLock lock(mutex_);
    more.swap(more_);
  }
  if (more) more->set_value();
}

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
  // A malformed plan stays empty. DirectMarking::begin() then reports that this worker's tensors are missing.
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
      executor_(executor_of(calls_.agent())),
      root_(executor_),
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
void PassPart::update(Event event, bool may_destroy) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    Locked locked{state_, graph_.get(), effects.actions, *this};
    event(locked);
    settle_locked(effects);
  }
  perform(effects, may_destroy);
}

void PassPart::answered(const absl::StatusOr<proto::PassAnswer>& answer, Event event) {
  update(
      [&](Locked& locked) {
        answer.ok() ? event(locked) : locked.state.fail(answer.status(), locked.actions);
      },
      /*may_destroy=*/false);
}

void PassPart::release_graph() {
  std::shared_ptr<LocalExecutor> graph;  // Destroyed without the lock.
  MutexLock lock(mutex_);
  graph.swap(spent_);
}

void PassPart::abort(const absl::Status& reason) {
  update([&](Locked& locked) { locked.state.fail(reason, locked.actions); });
}

void PassPart::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  const absl::Status lost(
      reason.code(),
      absl::StrCat("worker \"", worker.name, "\" was lost during the backward pass of the autograd context ",
                   rpc::to_string(rpc::from_proto(calls_.header().context())), ": ", reason.message()));
  update(
      [&](Locked& locked) {
        locked.state.worker_lost(worker.incarnation, with_worker(lost, worker.name), locked.actions);
      },
      /*may_destroy=*/false);
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
  settle_locked(effects);
  mutex_.unlock();
  perform(effects, /*may_destroy=*/true);
}

// Each owed reply is moved out of `replies_` once, so it is sent exactly once. The numbers that the state
// returns are always in the map, unless a reply was already taken.
void PassPart::settle_locked(Effects& effects) {
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
    effects.graph = std::move(graph_);
  }
}

// 1. Destroy the graph, so that the tensors of the pass are free when backward() returns. Destructors of user
//    objects could block this thread. If others wait for it, the thread of backward() destroys the graph at
//    the root (release_graph), and elsewhere the executor.
// 2. Record and report the end. A trainer whose backward() has returned then does not count as forwarding at
//    the step barrier.
// 3. Send the replies that are owed, and ABORT to the workers that were reached.
// 4. At the root: let the run begin, and send FINISH.
// 5. Wake the root's thread last. It may release the context at once.
void PassPart::perform(Effects& effects, bool may_destroy) {
  const PassState::Actions& actions = effects.actions;
  if (effects.graph != nullptr && executor_ != nullptr && (!may_destroy || on_duty())) {
    if (calls_.is_root()) {
      MutexLock lock(mutex_);
      spent_ = std::move(effects.graph);
    } else {
      executor_->post_or_run([graph = std::move(effects.graph)] {});
    }
  }
  effects.graph.reset();
  // The order matters: the end is recorded before any other party learns of it.
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
