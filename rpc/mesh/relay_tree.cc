#include "gradwire/rpc/mesh/relay_tree.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/mesh/mesh_call.h"
#include "gradwire/rpc/rref/handle.h"

namespace gradwire::rpc {

std::vector<std::size_t> TreePlan::heads(std::size_t begin, std::size_t end) const {
  std::vector<std::size_t> heads;
  const std::size_t parts = std::min(fanout_, end - begin);
  for (std::size_t part = 0; part < parts; ++part) heads.push_back(begin + part * (end - begin) / parts);
  return heads;
}

std::vector<std::size_t> TreePlan::children(std::size_t place) const {
  return heads(place + 1, subtree_end(place));
}

// Goes down from the root: of the parts of a range, the last one that begins at or before the place contains
// it.
std::size_t TreePlan::subtree_end(std::size_t place) const {
  std::size_t begin = 0;
  std::size_t end = places_;
  while (true) {
    const std::vector<std::size_t> parts = heads(begin, end);
    const auto after = std::upper_bound(parts.begin(), parts.end(), place);
    if (after != parts.end()) end = *after;
    const std::size_t head = *(after - 1);
    if (head == place) return end;
    begin = head + 1;
  }
}

}  // namespace gradwire::rpc

namespace gradwire::rpc::mesh_internal {

absl::StatusOr<std::size_t> place_in(const std::vector<uint64_t>& members, uint64_t self) {
  if (members.size() > kMaxBroadcastMembers) {
    return absl::InvalidArgumentError(
        absl::StrCat("a broadcast has at most ", kMaxBroadcastMembers, " members, got ", members.size()));
  }
  HashMap<uint64_t, std::size_t> places;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!places.emplace(members[i], i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the list of a broadcast names incarnation ", absl::Hex(members[i]), " twice"));
    }
  }
  const auto found = places.find(self);
  if (found == places.end())
    return absl::InvalidArgumentError("the list of a broadcast does not name its receiver");
  return found->second;
}

RelayTree::RelayTree(const std::shared_ptr<Agent>& agent, std::vector<uint64_t> members, absl::Time deadline,
                     std::unique_ptr<GroupCall> call, Decode decode)
    : agent_(agent),
      incarnations_(std::move(members)),
      plan_(incarnations_.size(), kBroadcastFanout),
      deadline_(deadline),
      call_(std::move(call)),
      decode_(decode),
      promise_(agent->executor()) {
  for (std::size_t i = 0; i < incarnations_.size(); ++i) places_.emplace(incarnations_[i], i);
  // The caller of start() waits for the end of all calls. And the members get values, not parts of a graph:
  // a gradient would have to take the way of the tree back.
  call_->borrow_tensors();
  call_->leave_context();
  MutexLock lock(mutex_);
  members_.resize(incarnations_.size());
}

Future<RelayOutcome> RelayTree::start(const std::vector<std::size_t>& children) {
  {
    MutexLock lock(mutex_);
    // One more until all are sent.
    pending_ = children.size() + 1;
  }
  for (const std::size_t place : children) send(place);
  finished(1);
  return promise_.future();
}

void RelayTree::send(std::size_t place) {
  const std::shared_ptr<Agent> agent = agent_.lock();
  if (agent == nullptr) {
    answered(place, absl::FailedPreconditionError("the agent was destroyed"));
    return;
  }
  const absl::StatusOr<Worker> worker = agent->services().find_worker_by_incarnation(incarnations_[place]);
  if (!worker.ok()) {
    answered(place, worker.status());
    return;
  }
  const Destination to = Destination::incarnation_of(*worker).with_timeout(deadline_ - call_->started());
  const uint64_t id = MemberCall(*call_, to, place)
                          .send([self = shared_from_this(), place](absl::StatusOr<IncomingPayload> in) {
                            self->answered(place, in.ok() ? self->decode_(*in) : in.status());
                          });
  absl::Status cancelled;
  {
    MutexLock lock(mutex_);
    ids_.push_back(id);
    cancelled = cancelled_;
  }
  if (!cancelled.ok()) cancel_all(agent_, {id}, cancelled);
}

void RelayTree::answered(std::size_t place, absl::StatusOr<RelayOutcome> outcome) {
  std::vector<std::size_t> adopted;
  {
    MutexLock lock(mutex_);
    if (outcome.ok()) {
      accept_locked(place, *outcome);
    } else {
      members_[place].done = true;
      members_[place].failure = outcome.status();
      for (const std::size_t child : plan_.children(place)) {
        if (cancelled_.ok()) {
          adopted.push_back(child);
          continue;
        }
        for (std::size_t below = child; below < plan_.subtree_end(child); ++below) {
          members_[below].done = true;
          members_[below].failure = cancelled_;
        }
      }
      pending_ += adopted.size();
    }
  }
  // Sending may block, and this may be a thread of the transport.
  const std::shared_ptr<Executor> executor = promise_.future().executor();
  for (const std::size_t child : adopted) {
    executor->post_or_run([self = shared_from_this(), child] {
      const ScopedExecutionState scope(self->state_);
      self->send(child);
    });
  }
  finished(1);
}

// The report comes from another worker. It may speak only about the subtree of that worker, and a reference
// must be one to the member that it is reported for.
void RelayTree::accept_locked(std::size_t place, RelayOutcome& outcome) {
  const std::size_t end = plan_.subtree_end(place);
  for (auto& [incarnation, value] : outcome.delivered) {
    const auto found = places_.find(incarnation);
    if (found == places_.end() || found->second < place || found->second >= end) continue;
    Member& member = members_[found->second];
    if (member.done || value->owner().incarnation != incarnation) continue;
    member.done = true;
    member.value = value;
  }
  for (const auto& [incarnation, code, text] : outcome.failed) {
    const auto found = places_.find(incarnation);
    if (found == places_.end() || found->second < place || found->second >= end) continue;
    Member& member = members_[found->second];
    if (member.done) continue;
    member.done = true;
    const bool known = code > 0 && code <= static_cast<int64_t>(absl::StatusCode::kUnauthenticated);
    member.failure =
        absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal, text);
  }
  for (std::size_t below = place; below < end; ++below) {
    if (members_[below].done) continue;
    members_[below].done = true;
    members_[below].failure = absl::InternalError("the broadcast was not reported by the worker above it");
  }
}

RelayOutcome RelayTree::outcome_locked() {
  RelayOutcome outcome;
  for (std::size_t place = 0; place < members_.size(); ++place) {
    Member& member = members_[place];
    if (!member.done) continue;
    if (member.value != nullptr) {
      outcome.delivered.emplace_back(incarnations_[place], std::move(member.value));
    } else {
      outcome.failed.emplace_back(incarnations_[place], static_cast<int64_t>(member.failure.code()),
                                  std::string(member.failure.message()));
    }
  }
  return outcome;
}

void RelayTree::finished(std::size_t count) {
  RelayOutcome outcome;
  {
    MutexLock lock(mutex_);
    pending_ -= count;
    if (pending_ > 0) return;
    outcome = outcome_locked();
  }
  promise_.set_value(std::move(outcome));
}

void RelayTree::cancel(const absl::Status& reason) {
  std::vector<uint64_t> ids;
  {
    MutexLock lock(mutex_);
    cancelled_ = reason;
    ids = ids_;
  }
  cancel_all(agent_, ids, reason);
}

}  // namespace gradwire::rpc::mesh_internal
