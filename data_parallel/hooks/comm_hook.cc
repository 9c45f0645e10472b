#include "gradwire/data_parallel/hooks/comm_hook.h"

#include <algorithm>

namespace gradwire::data_parallel {

HookStep::HookStep(Future<at::Tensor> future) : future_(std::move(future)), local_(true) {
  next_ = [this_future = future_] { return HookStep(this_future.wait()); };
}

HookStep HookStep::after(std::vector<std::shared_ptr<collectives::Work>> works, Next next) {
  return HookStep(std::move(works), std::move(next), /*local=*/false);
}

HookStep HookStep::locally_after(std::vector<std::shared_ptr<collectives::Work>> works, Next next) {
  return HookStep(std::move(works), std::move(next), /*local=*/true);
}

// Problem: the change belongs after the last step, but the later steps do not exist yet. So each step's
// function is wrapped into one that passes the change on to the next step.
HookStep HookStep::then(absl::AnyInvocable<at::Tensor(at::Tensor)> change) && {
  if (ended()) return HookStep(change(std::move(result_)));
  HookStep wrapped = std::move(*this);
  wrapped.next_ = [next = std::move(wrapped.next_), change = std::move(change)]() mutable {
    return next().then(std::move(change));
  };
  return wrapped;
}

// As then(). A reduction that has ended here may still run on another rank, so `next` is a step of its own.
HookStep HookStep::then_after(absl::AnyInvocable<HookStep(at::Tensor)> next) && {
  if (ended()) {
    return after({}, [result = std::move(result_), next = std::move(next)]() mutable {
      return next(std::move(result));
    });
  }
  HookStep wrapped = std::move(*this);
  wrapped.next_ = [before = std::move(wrapped.next_), next = std::move(next)]() mutable {
    return before().then_after(std::move(next));
  };
  return wrapped;
}

bool HookStep::can_advance_locally() const {
  return local_ && (!future_.valid() || future_.done()) &&
         std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->is_completed(); });
}

HookStep HookStep::advance() && {
  for (const std::shared_ptr<collectives::Work>& work : works_) work->wait();
  return next_();
}

void CommHook::save(torch::serialize::OutputArchive&) const {}
void CommHook::load(torch::serialize::InputArchive&) {}

}  // namespace gradwire::data_parallel
