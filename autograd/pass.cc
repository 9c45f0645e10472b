#include "autograd/pass.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"

namespace gradwire::autograd {

Pass::Pass(std::weak_ptr<rpc::Agent> agent, const rpc::Worker& self, std::shared_ptr<ContextState> context,
           proto::Pass header, absl::Time deadline, Ended ended)
    : agent_(std::move(agent)),
      self_(self),
      context_(std::move(context)),
      header_(std::move(header)),
      id_(rpc::from_proto(header_.pass())),
      deadline_(deadline),
      ended_(std::move(ended)),
      state_({.self = self_.incarnation, .root = id_.origin, .fast = header_.fast()}),
      executor_(std::make_shared<LocalExecutor>(
          LocalExecutor::Options{.context = context_->id,
                                 .self = self_.incarnation,
                                 .retain_graph = header_.retain_graph(),
                                 .sum_in_edge_order = header_.sum_in_edge_order(),
                                 .keep_leaves = !header_.inputs_only()})) {}

absl::Status Pass::here(absl::Status status) const { return with_worker(std::move(status), self_.name); }

uint64_t Pass::add_reply_locked(const Reply& reply) {
  replies_.emplace(next_reply_, reply);
  return next_reply_++;
}

void Pass::begin_fast() {
  if (!header_.fast()) return;
  std::vector<std::shared_ptr<SendNode>> nodes;
  {
    MutexLock lock(context_->mutex);
    for (const auto& [message, node] : context_->send_nodes) nodes.push_back(node);
  }
  absl::Status lost;
  if (std::shared_ptr<rpc::Agent> agent = agent_.lock()) {
    for (const auto& node : nodes) {
      // Lost before this pass began: worker_lost() will not come.
      absl::StatusOr<rpc::Worker> receiver = agent->find_worker_by_incarnation(node->receiver());
      if (receiver.ok()) lost.Update(agent->worker_status(*receiver));
      if (!receiver.ok()) lost.Update(absl::UnavailableError(receiver.status().message()));
    }
  }
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (std::exchange(fast_begun_, true) || state_.ended()) return;
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
    if (!lost.ok()) state_.fail(here(lost), actions);
    if (!state_.ended()) state_.counted(executor_->take_counted());
  }
  perform(std::move(actions));
}

void Pass::mark(const rpc::Worker& from, const proto::Mark& mark, const Reply& reply) {
  std::shared_ptr<SendNode> node;
  {
    MutexLock lock(context_->mutex);
    auto found = context_->send_nodes.find(mark.message());
    if (found != context_->send_nodes.end()) node = found->second;
  }
  PassState::Actions actions;
  LocalExecutor::Reach reach;
  std::vector<uint64_t> numbers;
  {
    MutexLock lock(mutex_);
    if (state_.begin_mark(from.incarnation, mark.number(), add_reply_locked(reply), actions)) {
      absl::StatusOr<LocalExecutor::Reach> walked =
          state_.ended()    ? absl::AbortedError("the backward pass has ended")
          : node == nullptr ? absl::StatusOr<LocalExecutor::Reach>(absl::NotFoundError(
                                  absl::StrCat("no tensors were sent as message ", mark.message(),
                                               " of the autograd context ", rpc::to_string(context_->id))))
                            : executor_->mark_outputs(node, {mark.outputs().begin(), mark.outputs().end()});
      if (walked.ok()) {
        reach = *std::move(walked);
        state_.counted(executor_->take_counted());
        std::vector<uint64_t> senders;
        for (const LocalExecutor::Reached& each : reach) senders.push_back(each.node->sender().incarnation);
        numbers = state_.end_walk(senders, actions);
      } else {
        state_.fail(here(walked.status()), actions);
      }
    }
  }
  send_marks(reach, numbers);
  perform(std::move(actions));
}

void Pass::start(torch::autograd::edge_list roots, const std::vector<at::Tensor>& inputs) {
  PassState::Actions actions;
  LocalExecutor::Reach reach;
  std::vector<uint64_t> numbers;
  {
    MutexLock lock(mutex_);
    if (state_.ended()) return;
    if (!header_.fast()) state_.begin_root();
    absl::StatusOr<LocalExecutor::Reach> walked = executor_->mark_roots(std::move(roots), inputs);
    if (!walked.ok()) {
      state_.fail(here(walked.status()), actions);
    } else {
      state_.counted(executor_->take_counted());
      if (header_.fast()) {
        actions.start_run = true;
      } else {
        reach = *std::move(walked);
        std::vector<uint64_t> senders;
        for (const LocalExecutor::Reached& each : reach) senders.push_back(each.node->sender().incarnation);
        numbers = state_.end_walk(senders, actions);
      }
    }
  }
  if (actions.start_run) begin_fast();
  send_marks(reach, numbers);
  perform(std::move(actions));
}

void Pass::run_roots(torch::autograd::variable_list gradients) {
  at::AutoGradMode no_graph(false);
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    if (state_.ended()) return;
    absl::Status delivered = executor_->deliver_roots(std::move(gradients));
    if (delivered.ok()) {
      state_.ran(1, actions);
    } else {
      state_.fail(here(delivered), actions);
    }
  }
  perform(std::move(actions));
  drain();
}

void Pass::run(const rpc::Worker& from, const proto::Run& run, std::vector<at::Tensor> defined,
               const Reply& reply) {
  begin_fast();
  at::AutoGradMode no_graph(false);
  PassState::Actions actions;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = state_.status();
    if (status.ok() && state_.run_arrived(from.incarnation, run.message())) {
      torch::autograd::variable_list gradients;
      std::size_t next = 0;
      for (std::size_t i = 0; i < 8 * run.defined().size(); ++i) {
        const bool is_defined = (static_cast<uint8_t>(run.defined()[i / 8]) >> (i % 8) & 1) != 0;
        gradients.push_back(is_defined && next < defined.size() ? std::move(defined[next++]) : at::Tensor());
      }
      absl::Status delivered = next == defined.size()
                                   ? executor_->deliver_message(run.message(), std::move(gradients))
                                   : absl::InvalidArgumentError(absl::StrCat(
                                         "worker \"", from.name, "\" shipped more gradients than it says"));
      if (delivered.ok()) {
        state_.ran(1, actions);
      } else {
        state_.fail(here(delivered), actions);
      }
    }
  }
  reply_to_run(reply, status);
  perform(std::move(actions));
  drain();
}

void Pass::drain() {
  at::AutoGradMode no_graph(false);
  PassState::Actions actions;
  mutex_.lock();
  if (!draining_) {
    draining_ = true;
    LocalExecutor::Task task;
    while (!state_.ended() && executor_->next(task)) {
      // The pass may be aborted, and let go of the graph, while the node runs.
      std::shared_ptr<LocalExecutor> executor = executor_;
      mutex_.unlock();
      absl::Status status = executor->run(task);
      if (status.ok()) status = keep(task);
      mutex_.lock();
      if (state_.ended()) {
        mutex_.unlock();
        // Here and not under the lock: with the graph go objects of the user's.
        task = LocalExecutor::Task();
        executor.reset();
        mutex_.lock();
        break;
      }
      if (status.ok()) {
        try {
          executor->finished(task);
        } catch (...) {
          status = with_context(status_from_exception(std::current_exception()), "adding up gradients");
        }
      }
      if (!status.ok()) {
        state_.fail(here(status), actions);
        break;
      }
      if (task.recv != nullptr) {
        state_.shipping(task.recv->sender().incarnation);
        state_.ran(1, actions);
        mutex_.unlock();
        ship(*task.recv, std::move(task.outputs));
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
  try {
    MutexLock lock(context_->mutex);
    for (auto& [tensor, gradient] : task.kept) accumulate(context_->gradients, tensor, std::move(gradient));
  } catch (...) {
    return with_context(status_from_exception(std::current_exception()), "adding up the gradients of a leaf");
  }
  task.kept.clear();
  return absl::OkStatus();
}

void Pass::finish(const Reply& reply) {
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    state_.finish_asked(add_reply_locked(reply), actions);
  }
  perform(std::move(actions));
}

void Pass::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  PassState::Actions actions;
  {
    MutexLock lock(mutex_);
    state_.worker_lost(
        worker.incarnation,
        absl::Status(reason.code(), absl::StrCat("worker \"", worker.name,
                                                 "\" was lost during the backward pass of the autograd "
                                                 "context ",
                                                 rpc::to_string(context_->id), ": ", reason.message())),
        actions);
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
