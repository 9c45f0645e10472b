#include "gradwire/autograd/context/step_barrier.h"

#include <algorithm>

namespace gradwire::autograd {

StepBarrier::Tickets StepBarrier::disarm() {
  --armed_;
  return pump();
}

StepBarrier::Tickets StepBarrier::request(uint64_t ticket, const rpc::Id& context, bool admitted) {
  queue_.push_back({ticket, context, false, admitted, nullptr});
  return pump();
}

StepBarrier::Tickets StepBarrier::admitted(const rpc::Id& context) {
  for (Waiter& waiter : queue_) {
    if (waiter.context == context) waiter.admitted = true;
  }
  return pump();
}

StepBarrier::Tickets StepBarrier::step(uint64_t ticket, const rpc::Id& context,
                                       const Parameters& parameters) {
  // A trainer that steps has had its backward. Its calls since then do not count as a forward, otherwise two
  // trainers that made such calls would wait for each other.
  forwarding_.erase(context);
  queue_.push_back({ticket, context, true, false, parameters});
  return pump();
}

StepBarrier::Tickets StepBarrier::step_ended(const Parameters& parameters) {
  running_.erase(std::find(running_.begin(), running_.end(), parameters));
  return pump();
}

StepBarrier::Tickets StepBarrier::left(const rpc::Id& context) {
  if (forwarding_.erase(context) == 0) return {};
  return pump();
}

bool StepBarrier::give_up(uint64_t ticket, Tickets& passed) {
  auto found =
      std::find_if(queue_.begin(), queue_.end(), [&](const Waiter& w) { return w.ticket == ticket; });
  if (found == queue_.end()) return false;
  queue_.erase(found);
  passed = pump();
  return true;
}

// Both lists are ascending, so one pass over each finds a common parameter.
bool StepBarrier::is_being_stepped(const Parameters& parameters) const {
  for (const Parameters& others : running_) {
    auto other = others->begin();
    for (uintptr_t parameter : *parameters) {
      while (other != others->end() && *other < parameter) ++other;
      if (other != others->end() && *other == parameter) return true;
    }
  }
  return false;
}

StepBarrier::Tickets StepBarrier::pump() {
  // Goes through the queue in the order of arrival and lets every waiter pass that the rules of the class
  // comment allow. The two flags say what was found earlier in the queue.
  Tickets passed;
  // A step waits: a request of a context that is not known yet must not overtake it.
  bool step_waits = false;
  // A request waits for a step to end: later steps must not delay it by running one after the other.
  bool request_waits = false;
  for (auto waiter = queue_.begin(); waiter != queue_.end();) {
    bool passes;
    if (waiter->is_step) {
      const std::size_t own = forwarding_.contains(waiter->context) ? 1 : 0;
      passes = !request_waits && (armed_ == 0 || forwarding_.size() == own) &&
               !is_being_stepped(waiter->parameters);
      if (passes) {
        running_.push_back(waiter->parameters);
      } else {
        step_waits = true;
      }
    } else {
      const bool known = waiter->admitted || forwarding_.contains(waiter->context);
      passes = armed_ == 0 || (running_.empty() && (known || !step_waits));
      if (passes) {
        forwarding_.insert(waiter->context);
      } else {
        request_waits = request_waits || !running_.empty();
      }
    }
    if (passes) {
      passed.push_back(waiter->ticket);
      waiter = queue_.erase(waiter);
    } else {
      ++waiter;
    }
  }
  return passed;
}

}  // namespace gradwire::autograd
