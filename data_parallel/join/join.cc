#include "gradwire/data_parallel/join/join.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::data_parallel {
namespace {

std::shared_ptr<collectives::ProcessGroup> common_group(const std::vector<Joinable*>& objects) {
  if (objects.empty()) throw Error(absl::InvalidArgumentError("Join needs at least one object"));
  for (const Joinable* each : objects) {
    if (each->join_group() == objects[0]->join_group()) continue;
    throw Error(absl::InvalidArgumentError(absl::StrCat("the objects of a Join must have one group, got \"",
                                                        objects[0]->join_group()->name(), "\" and \"",
                                                        each->join_group()->name(), "\"")));
  }
  return objects[0]->join_group();
}

}  // namespace

Join::Join(std::vector<Joinable*> objects, const JoinOptions& options)
    : objects_(std::move(objects)),
      options_(options),
      group_(common_group(objects_)),
      exceptions_(std::uncaught_exceptions()),
      finished_(!options.enable) {
  if (!options_.enable) return;
  for (const Joinable* each : objects_) each->check_join();
  objects_[0]->set_join_notifier(this);
}

Join::~Join() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) {
    leave();
  } else {
    finish();
  }
}

void Join::leave() {
  if (!std::exchange(finished_, true)) objects_[0]->set_join_notifier(nullptr);
}

at::Tensor Join::reduced(const at::Tensor& mine, collectives::ReduceOp op) const {
  const at::Tensor tensor = mine.to(objects_[0]->join_device());
  group_->all_reduce(tensor, op);
  return tensor.cpu();
}

// The message has an entry for each rank: 0 if it has joined, 1 if it has data, 2 if it also averages its
// gradients. Every rank writes its own entry, so their sum is the state of all ranks.
JoinStatus Join::exchange(bool active, bool synchronizes) {
  at::Tensor states = at::zeros({group_->size()}, at::kInt);
  states.mutable_data_ptr<int32_t>()[group_->rank()] = active ? (synchronizes ? 2 : 1) : 0;
  states = reduced(states, collectives::ReduceOp::kSum);
  JoinStatus status{.active = 0, .synchronizes = false, .divisor = group_->size(), .buffers_from = 0};
  for (int rank = 0; rank < group_->size(); ++rank) {
    const int32_t state = states.const_data_ptr<int32_t>()[rank];
    if (state == 0) continue;
    ++status.active;
    status.synchronizes = status.synchronizes || state == 2;
    status.buffers_from = rank;
  }
  if (!options_.divide_by_initial_world_size && status.active > 0) status.divisor = status.active;
  return status;
}

void Join::check_early_termination(const JoinStatus& status) const {
  if (!options_.throw_on_early_termination || status.active == group_->size() || status.active == 0) return;
  throw Error(absl::FailedPreconditionError(
      absl::StrCat(group_->size() - status.active, " of ", group_->size(),
                   " ranks have no more data, and throw_on_early_termination is set")));
}

JoinStatus Join::before_step(bool synchronizes) {
  const JoinStatus status = exchange(/*active=*/true, synchronizes);
  check_early_termination(status);
  return status;
}

// 1. Exchange the state. While a rank has data, do what its step does.
// 2. When no rank has data, find a rank that had data until the end. If a rank has seen no exchange with an
//    active rank, it was among the last ones. So each rank reports whether it was, and all take the highest
//    of these ranks.
void Join::finish() {
  if (finished_) return;
  objects_[0]->set_join_notifier(nullptr);
  finished_ = true;
  std::vector<std::unique_ptr<JoinHook>> hooks;
  for (Joinable* each : objects_) hooks.push_back(each->join_hook());
  bool is_last = true;
  while (true) {
    const JoinStatus status = exchange(/*active=*/false, /*synchronizes=*/false);
    if (status.active == 0) break;
    check_early_termination(status);
    is_last = false;
    if (!status.synchronizes) continue;
    for (const std::unique_ptr<JoinHook>& hook : hooks) hook->shadow_step(status);
  }
  const at::Tensor mine = at::full({1}, is_last ? group_->rank() : -1, at::kInt);
  const int rank = reduced(mine, collectives::ReduceOp::kMax).item<int32_t>();
  if (rank < 0 || rank >= group_->size()) {
    throw Error(absl::InternalError(absl::StrCat("Join: malformed rank from a peer: got ", rank)));
  }
  for (const std::unique_ptr<JoinHook>& hook : hooks) hook->all_joined(rank);
}

}  // namespace gradwire::data_parallel
