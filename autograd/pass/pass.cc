#include "gradwire/autograd/pass/pass.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/active_context.h"
#include "gradwire/autograd/context/joints.h"
#include "gradwire/autograd/context/position.h"
#include "gradwire/autograd/context/unjoined.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"

namespace gradwire::autograd {
namespace {

// A tensor's `.grad` belongs to no agent: whatever passes set it take turns.
Mutex& retained_gradients() {
  static auto* const mutex = new Mutex;
  return *mutex;
}

// Whoever waits for the pass serves the agent meanwhile.
std::shared_ptr<Executor> executor_of(const std::weak_ptr<rpc::Agent>& agent) {
  const std::shared_ptr<rpc::Agent> alive = agent.lock();
  return alive == nullptr ? nullptr : alive->executor();
}

// A recorded pass makes nodes of its own, which stand where it was called.
std::shared_ptr<const ActiveContext> active_in(const ContextState& context, const proto::Pass& header) {
  std::optional<Timeline::Path> path = read_position(header.position());
  if (header.position().empty() || !path) return context.active;
  return context.active->serving(*std::move(path));
}

}  // namespace

Pass::Pass(std::weak_ptr<rpc::Agent> agent, const rpc::Worker& self, std::shared_ptr<ContextState> context,
           proto::Pass header, absl::Time deadline, Ended ended)
    : agent_(std::move(agent)),
      self_(self),
      context_(std::move(context)),
      active_(active_in(*context_, header)),
      header_(std::move(header)),
      id_(rpc::from_proto(header_.pass())),
      plan_(id_.origin),
      deadline_(deadline),
      ended_(std::move(ended)),
      state_({.self = self_.incarnation, .root = id_.origin, .fast = header_.fast()}),
      executor_(std::make_shared<LocalExecutor>(LocalExecutor::Options{
          .context = context_->id,
          .self = self_.incarnation,
          .retain_graph = header_.retain_graph(),
          .sum_as_they_arrive = header_.sum_as_they_arrive(),
          .timeline = std::shared_ptr<const Timeline>(context_->active, &context_->active->timeline()),
          .inputs_only = header_.inputs_only(),
          .anomaly = header_.anomaly(),
          .check_nan = header_.check_nan(),
          .retained_gradients = &retained_gradients()})),
      wave_over_(executor_of(agent_)),
      completion_(executor_of(agent_)) {
  if (!header_.planned()) return;
  // A malformed one is noticed by what it lacks, in mark_planned_locked().
  if (std::optional<Onward> part = onward_from_proto(header_.plan())) plan_.add(*std::move(part));
  header_.clear_plan();
}

absl::Status Pass::here(absl::Status status) const { return with_worker(std::move(status), self_.name); }

uint64_t Pass::add_reply_locked(const Reply& reply) {
  replies_.emplace(next_reply_, reply);
  return next_reply_++;
}

void Pass::begin() {
  {
    MutexLock lock(mutex_);
    if (begun_) return;
  }
  if (header_.fast()) begin_fast();
  if (header_.planned()) begin_planned();
}

void Pass::begin_fast() {
  std::vector<std::shared_ptr<SendNode>> nodes;
  {
    MutexLock lock(context_->mutex);
    for (const auto& [message, node] : context_->send_nodes) nodes.push_back(node);
  }
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (std::exchange(begun_, true) || state_.ended()) return;
    for (const auto& node : nodes) {
      std::vector<uint32_t> all(node->num_outputs());
      for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
      absl::StatusOr<LocalExecutor::Reach> reach = executor_->mark_outputs(node, all);
      if (!reach.ok()) {
        state_.fail(here(reach.status()), actions);
        break;
      }
      // Its loss means gradients that never come.
      if (node->receiver() != self_.incarnation) state_.depends_on(node->receiver());
    }
    if (!state_.ended()) state_.counted(executor_->take_counted());
  }
  perform(std::move(actions));
  for (const auto& node : nodes) notice_loss(node->receiver());
}

void Pass::notice_loss(uint64_t incarnation) {
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr || incarnation == self_.incarnation) return;
  absl::StatusOr<rpc::Worker> worker = agent->find_worker_by_incarnation(incarnation);
  if (!worker.ok()) return abort(here(absl::UnavailableError(worker.status().message())));
  if (absl::Status status = agent->worker_status(*worker); !status.ok()) worker_lost(*worker, status);
}

void Pass::notice_losses(const rpc::Worker& from) {
  notice_loss(from.incarnation);
  if (id_.origin != from.incarnation) notice_loss(id_.origin);
}

std::vector<std::shared_ptr<SendNode>> Pass::find_send_nodes(const std::vector<uint64_t>& messages) const {
  std::vector<std::shared_ptr<SendNode>> nodes;
  MutexLock lock(context_->mutex);
  for (uint64_t message : messages) {
    auto found = context_->send_nodes.find(message);
    nodes.push_back(found == context_->send_nodes.end() ? nullptr : found->second);
  }
  return nodes;
}

bool Pass::begin_planned() {
  std::vector<uint64_t> messages;
  for (const Onward& part : plan_.parts()) {
    for (const auto& [message, outputs] : part.messages()) {
      if (message.first == self_.incarnation) messages.push_back(message.second);
    }
  }
  const std::vector<std::shared_ptr<SendNode>> nodes = find_send_nodes(messages);
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (std::exchange(begun_, true) || state_.ended()) return false;
    if (absl::Status marked = mark_planned_locked(nodes); !marked.ok()) {
      state_.fail(here(std::move(marked)), actions);
    }
  }
  perform(std::move(actions));
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const auto& node) { return node != nullptr && node->leads_on(); });
}

absl::Status Pass::mark_planned_locked(const std::vector<std::shared_ptr<SendNode>>& nodes) {
  // Only who has sent tensors of the plan gets a message of a planned pass.
  if (id_.origin != self_.incarnation && nodes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "malformed plan of a backward pass: got no tensor that this worker sent, expected at least "
        "one, and at most ",
        Onward::kMaxTensors, " in all"));
  }
  auto node = nodes.begin();
  for (const Onward& part : plan_.parts()) {
    for (const auto& [message, outputs] : part.messages()) {
      if (message.first != self_.incarnation) continue;
      if (*node == nullptr) return no_such_message(message.second);
      GRADWIRE_ASSIGN_OR_RETURN(LocalExecutor::Reach reach,
                                executor_->mark_outputs(*node++, {outputs.begin(), outputs.end()}));
      GRADWIRE_RETURN_IF_ERROR(check_planned(part, reach));
    }
  }
  state_.counted(executor_->take_counted());
  return absl::OkStatus();
}

absl::Status Pass::check_planned(const Onward& part, const LocalExecutor::Reach& reach) {
  for (const LocalExecutor::Reached& reached : reach.marked) {
    const rpc::Worker& sender = reached.node->sender();
    for (uint32_t output : reached.outputs) {
      if (part.contains(sender.incarnation, reached.node->message(), output)) continue;
      return absl::InternalError(absl::StrCat("the plan of the backward pass lacks tensor ", output,
                                              " of message ", reached.node->message(), " from \"",
                                              sender.name, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status Pass::no_such_message(uint64_t message) const {
  return absl::NotFoundError(absl::StrCat("no tensors were sent as message ", message,
                                          " of the autograd context ", rpc::to_string(context_->id)));
}

void Pass::begin_run_locked() {
  if (!header_.inputs_only() || executor_ == nullptr) return;
  executor_->begin_run();
  state_.counted(executor_->take_counted());
}

absl::Status Pass::add_inputs(const std::vector<at::Tensor>& inputs) {
  MutexLock lock(mutex_);
  if (state_.ended()) return absl::AbortedError("the backward pass has ended");
  executor_->add_inputs(inputs);
  return absl::OkStatus();
}

void Pass::serve_wave(const rpc::Worker& from, uint64_t number, const Reply& reply,
                      absl::FunctionRef<absl::StatusOr<LocalExecutor::Reach>()> walk) {
  PassState::Actions actions;
  std::vector<WaveMessage> messages;
  std::vector<uint64_t> numbers;
  {
    MutexLock lock(mutex_);
    if (state_.begin_mark(from.incarnation, number, add_reply_locked(reply), actions)) {
      absl::StatusOr<LocalExecutor::Reach> walked =
          state_.ended() ? absl::AbortedError("the backward pass has ended") : walk();
      if (walked.ok()) {
        messages = wave_messages(*walked);
        state_.counted(executor_->take_counted());
        numbers = state_.end_walk(receivers_of(messages), actions);
      } else {
        state_.fail(here(walked.status()), actions);
      }
    }
  }
  send_wave(std::move(messages), numbers);
  perform(std::move(actions));
  notice_losses(from);
}

void Pass::mark(const rpc::Worker& from, const proto::Mark& mark, const Reply& reply) {
  std::vector<uint64_t> messages;
  for (const proto::SentTensors& marked : mark.marked()) messages.push_back(marked.message());
  const std::vector<std::shared_ptr<SendNode>> nodes = find_send_nodes(messages);
  serve_wave(from, mark.number(), reply,
             [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::StatusOr<LocalExecutor::Reach> {
               LocalExecutor::Reach all;
               for (int i = 0; i < mark.marked_size(); ++i) {
                 const proto::SentTensors& marked = mark.marked(i);
                 if (nodes[i] == nullptr) return no_such_message(marked.message());
                 GRADWIRE_ASSIGN_OR_RETURN(
                     LocalExecutor::Reach reach,
                     executor_->mark_outputs(nodes[i], {marked.outputs().begin(), marked.outputs().end()}));
                 all.append(std::move(reach));
               }
               return all;
             });
}

void Pass::need(const rpc::Worker& from, const proto::Needed& needed, const Reply& reply) {
  serve_wave(from, needed.number(), reply,
             [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::StatusOr<LocalExecutor::Reach> {
               LocalExecutor::Reach all;
               for (const proto::SentTensors& each : needed.needed()) {
                 GRADWIRE_ASSIGN_OR_RETURN(
                     LocalExecutor::Reach reach,
                     executor_->need_outputs(from.incarnation, each.message(),
                                             {each.outputs().begin(), each.outputs().end()}));
                 all.append(std::move(reach));
               }
               return all;
             });
}

std::optional<Plan> Pass::plan_of(const LocalExecutor::Reach& reach) const {
  Plan plan(id_.origin);
  for (const LocalExecutor::Reached& reached : reach.marked) {
    for (uint32_t output : reached.outputs) {
      const Onward* onward = reached.node->onward(output);
      if (onward == nullptr) return std::nullopt;
      Onward tensors = *onward;
      tensors.add(reached.node->sender().incarnation, reached.node->message(), output);
      plan.add(std::move(tensors));
    }
    if (!plan.fits()) return std::nullopt;
  }
  return plan;
}

void Pass::start(torch::autograd::edge_list roots) {
  PassState::Actions actions;
  LocalExecutor::Reach reach;
  std::vector<WaveMessage> messages;
  std::vector<uint64_t> numbers;
  std::optional<Plan> plan;
  {
    MutexLock lock(mutex_);
    if (state_.ended()) return;
    absl::StatusOr<LocalExecutor::Reach> walked = executor_->mark_roots(std::move(roots));
    if (!walked.ok()) {
      state_.fail(here(walked.status()), actions);
    } else {
      reach = *std::move(walked);
      state_.counted(executor_->take_counted());
      // With inputs nothing is counted before run_roots(): it must not be taken for the end.
      if (header_.inputs_only()) state_.counted(1);
      if (!header_.fast() && !header_.inputs_only()) plan = plan_of(reach);
      if (header_.fast()) {
        actions.start_run = true;
      } else if (!plan) {
        state_.begin_root();
        messages = wave_messages(reach);
        numbers = state_.end_walk(receivers_of(messages), actions);
      }
    }
  }
  if (header_.fast()) begin_fast();
  if (plan) {
    plan_ = *std::move(plan);
    start_planned(reach);
  }
  send_wave(std::move(messages), numbers);
  perform(std::move(actions));
}

void Pass::start_planned(const LocalExecutor::Reach& reach) {
  header_.set_planned(true);
  absl::btree_set<uint64_t> participants, shipped_to;
  for (const Onward& part : plan_.parts()) {
    for (const auto& [message, outputs] : part.messages()) participants.insert(message.first);
  }
  for (const LocalExecutor::Reached& reached : reach.marked) {
    shipped_to.insert(reached.node->sender().incarnation);
  }
  // Where a gradient that comes back here goes on to others again, what the roots reach may have to wait for workers that
  // fail; whoever waits with it must be able to say so.
  if (begin_planned()) shipped_to.clear();
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (state_.ended()) return;
    state_.begin_planned({participants.begin(), participants.end()}, {shipped_to.begin(), shipped_to.end()},
                         actions);
  }
  perform(std::move(actions));
}

void Pass::run_roots(torch::autograd::variable_list gradients) {
  at::AutoGradMode mode(header_.create_graph());
  // The sums of a pass that is recorded have nodes.
  std::optional<ActiveContextSlot::Scope> scope;
  if (header_.create_graph()) scope.emplace(active_);
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (state_.ended()) return;
    attended_ = true;
    begin_run_locked();
    absl::Status delivered = executor_->deliver_roots(std::move(gradients));
    if (delivered.ok()) {
      state_.ran(header_.inputs_only() ? 2 : 1, actions);
    } else {
      state_.fail(here(delivered), actions);
    }
  }
  perform(std::move(actions));
  drain();
}

bool Pass::hand_over(Run& arrived) {
  {
    MutexLock lock(mutex_);
    if (!attended_) return false;
    handed_over_.push_back(std::move(arrived));
  }
  tell_waiting();
  return true;
}

void Pass::tell_waiting() {
  std::optional<Promise<void>> news;
  {
    MutexLock lock(mutex_);
    news.swap(news_);
  }
  if (news) news->set_value();
}

absl::Status Pass::wait_for_wave(absl::Time deadline) {
  const Future<void> over = wave_over_.future();
  if (!over.wait_for(deadline - Clock::system().now())) abort_late();
  return over.result();
}

absl::Status Pass::wait_for_end(absl::Time deadline) {
  const std::shared_ptr<Executor> executor = executor_of(agent_);
  const Future<void> completion = completion_.future();
  while (true) {
    const Promise<void> news(executor);
    std::vector<Run> arrived;
    bool ended = false;
    {
      MutexLock lock(mutex_);
      ended = completion.done();
      arrived.swap(handed_over_);
      if (ended) {
        attended_ = false;
      } else if (arrived.empty()) {
        news_ = news;
      }
    }
    for (Run& each : arrived) run(std::move(each));
    if (ended) return completion.result();
    const absl::Duration left = deadline - Clock::system().now();
    if (arrived.empty() ? news.future().wait_for(left) : left > absl::ZeroDuration()) continue;
    abort_late();
    deadline = absl::InfiniteFuture();
  }
}

void Pass::abort_late() {
  abort(absl::DeadlineExceededError(absl::StrCat(
      "the backward pass of the autograd context ", rpc::to_string(context_->id),
      " did not end in time: in the fast mode a tensor that was sent and not used in the loss keeps it "
      "waiting; otherwise a worker is slow")));
}

void Pass::run(Run arrived) {
  const rpc::Worker& from = arrived.from;
  const proto::Run& run = arrived.run;
  const Reply& reply = arrived.reply;
  begin();
  at::AutoGradMode mode(header_.create_graph());
  // The sums of a pass that is recorded have nodes.
  std::optional<ActiveContextSlot::Scope> scope;
  if (header_.create_graph()) scope.emplace(active_);
  PassState::Actions actions;
  absl::Status status;
  // The root hears of the end of this part by the answer.
  const bool finishes =
      header_.planned() && from.incarnation == id_.origin && from.incarnation != self_.incarnation;
  {
    MutexLock lock(mutex_);
    status = state_.status();
    if (status.ok()) begin_run_locked();
    if (status.ok() && state_.run_arrived(from.incarnation, run.message())) {
      absl::Status delivered = deliver_locked(arrived);
      if (delivered.ok()) {
        state_.ran(1, actions);
      } else {
        state_.fail(here(delivered), actions);
      }
    }
    if (finishes) state_.finish_asked(add_reply_locked(reply), actions);
  }
  perform(std::move(actions));
  notice_losses(from);
  drain();
  // Last, when this thread is about to look for what comes of it.
  if (!finishes) reply_to_run(reply, status);
}

absl::Status Pass::deliver_locked(Run& arrived) {
  const rpc::Worker& from = arrived.from;
  const proto::Run& run = arrived.run;
  std::vector<at::Tensor>& defined = arrived.defined;
  if (header_.create_graph()) {
    GRADWIRE_RETURN_IF_ERROR(plant_recv(context_->id, self_.incarnation, from, defined, run.graph()));
  }
  torch::autograd::variable_list gradients;
  std::size_t next = 0;
  for (std::size_t i = 0; i < 8 * run.defined().size(); ++i) {
    const bool is_defined = (static_cast<uint8_t>(run.defined()[i / 8]) >> (i % 8) & 1) != 0;
    gradients.push_back(is_defined && next < defined.size() ? std::move(defined[next++]) : at::Tensor());
  }
  if (next != defined.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker \"", from.name, "\" shipped more gradients than it says"));
  }
  return executor_->deliver_message(run.message(), std::move(gradients));
}

void Pass::drain() {
  at::AutoGradMode mode(header_.create_graph());
  // What nodes call belongs to the context too.
  ActiveContextSlot::Scope scope(active_);
  PassState::Actions actions;
  mutex_.lock();
  if (!draining_) {
    draining_ = true;
    while (!state_.ended()) {
      std::optional<LocalExecutor::Task> task = executor_->next();
      if (!task) break;
      // The pass may be aborted, and let go of the graph, while the node runs.
      std::shared_ptr<LocalExecutor> executor = executor_;
      mutex_.unlock();
      absl::Status status = executor->run(*task);
      if (status.ok()) status = keep(*task);
      mutex_.lock();
      if (status.ok() && !state_.ended()) {
        try {
          executor->finished(*task);
        } catch (...) {
          status = with_context(status_from_exception(std::current_exception()), "adding up gradients");
        }
      }
      if (!status.ok() && !state_.ended()) state_.fail(here(status), actions);
      if (!status.ok() || state_.ended()) {
        mutex_.unlock();
        // Here and not under the lock: with the graph go objects of the user's.
        task.reset();
        executor.reset();
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
    draining_ = false;
  }
  mutex_.unlock();
  perform(std::move(actions));
}

absl::Status Pass::keep(LocalExecutor::Task& task) {
  if (task.kept.empty()) return absl::OkStatus();
  GRADWIRE_RETURN_IF_ERROR(check_joined(task));
  try {
    MutexLock lock(context_->mutex);
    for (auto& [tensor, gradient] : task.kept) {
      accumulate(apart_.contains(tensor) ? apart_ : context_->gradients, tensor, std::move(gradient));
    }
  } catch (...) {
    return with_context(status_from_exception(std::current_exception()), "adding up the gradients of a leaf");
  }
  task.kept.clear();
  return absl::OkStatus();
}

absl::Status Pass::check_joined(const LocalExecutor::Task& task) {
  // With inputs only what was asked for is kept.
  if (header_.inputs_only()) return absl::OkStatus();
  for (const auto& [tensor, gradient] : task.kept) {
    const std::string* sender = unjoined_sender(tensor);
    if (sender == nullptr || is_apart(tensor)) continue;
    const bool first = context_->unjoined_gradients->fetch_add(1, std::memory_order_relaxed) == 0;
    if (!first && !header_.require_joined()) continue;
    const std::string what = absl::StrCat("backward in the autograd context ", rpc::to_string(context_->id),
                                          ": got a gradient for a tensor of shape ", c10::str(tensor.sizes()),
                                          " that worker \"", *sender,
                                          "\" sent outside every context, expected one that a call in this "
                                          "context brought; the gradient stays here and "
                                          "does not reach the worker: open the Context before the call whose "
                                          "result this is, or use tensor.detach() if "
                                          "the gradient is wanted here");
    if (header_.require_joined()) return absl::FailedPreconditionError(what);
    log(LogLevel::kWarning, what,
        " (reported once for each agent; BackwardOptions::require_joined makes this an error)");
  }
  return absl::OkStatus();
}

bool Pass::is_apart(const at::Tensor& tensor) {
  MutexLock lock(context_->mutex);
  return apart_.contains(tensor);
}

void Pass::keep_apart(const std::vector<at::Tensor>& tensors) {
  MutexLock lock(context_->mutex);
  for (const at::Tensor& tensor : tensors) apart_[tensor];
}

Gradients Pass::take_apart() {
  MutexLock lock(context_->mutex);
  return std::exchange(apart_, {});
}

void Pass::finish(const Reply& reply) {
  begin();
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (!state_.ended()) begin_run_locked();
    state_.finish_asked(add_reply_locked(reply), actions);
  }
  perform(std::move(actions));
  notice_loss(id_.origin);
}

void Pass::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    state_.worker_lost(
        worker.incarnation,
        with_worker(absl::Status(reason.code(),
                                 absl::StrCat("worker \"", worker.name,
                                              "\" was lost during the backward pass of the autograd context ",
                                              rpc::to_string(context_->id), ": ", reason.message())),
                    worker.name),
        actions);
  }
  perform(std::move(actions));
}

void Pass::abort_asked(const absl::Status& reason) {
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    state_.abort_asked(reason, actions);
  }
  perform(std::move(actions));
}

void Pass::abort(const absl::Status& reason) {
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    state_.fail(reason, actions);
  }
  perform(std::move(actions));
}

}  // namespace gradwire::autograd
