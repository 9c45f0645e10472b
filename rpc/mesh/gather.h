#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/function_traits.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call_steps.h"
#include "gradwire/rpc/mesh/group_call.h"
#include "gradwire/rpc/mesh/mesh_call.h"
#include "gradwire/rpc/mesh/mesh_result.h"

// Sends one call to all members of a mesh, and collects the answers.
namespace gradwire::rpc::mesh_internal {

// The answers of all members, which the thread that reads the result decodes.
template <class R>
class LazyMeshResult : public future_internal::LazyResult<MeshResult<R>> {
 public:
  LazyMeshResult(CallLabel label, std::vector<absl::StatusOr<IncomingPayload>> answers,
                 std::weak_ptr<Agent> agent)
      : label_(std::move(label)), answers_(std::move(answers)), agent_(std::move(agent)) {}

  void destroy() override {
    call_internal::destroy_as(agent_, [this] { future_internal::LazyResult<MeshResult<R>>::destroy(); });
  }

 private:
  void make(std::optional<absl::StatusOr<MeshResult<R>>>& result) override {
    std::vector<typename MeshResult<R>::Member> members;
    // Room for all: to grow, the vector would move the results.
    members.reserve(answers_.size());
    for (absl::StatusOr<IncomingPayload>& answer : std::exchange(answers_, {})) {
      if (answer.ok()) {
        future_internal::append(members, call_internal::decode_answer<R>(*std::move(answer)));
      } else {
        members.push_back(answer.status());
      }
    }
    result.emplace(absl::in_place, std::move(label_), std::move(members));
  }

  CallLabel label_;
  std::vector<absl::StatusOr<IncomingPayload>> answers_;
  const std::weak_ptr<Agent> agent_;
};

// The answers to one call of all members. Each entry is written by the thread that completes the member's
// call. The thread that completes the last one completes the promise.
template <class R>
class Gathering {
 public:
  Gathering(const std::shared_ptr<Agent>& agent, CallLabel label, std::size_t members)
      : agent_(agent), label_(std::move(label)), missing_(members), promise_(agent->executor()) {
    for (std::size_t i = 0; i < members; ++i) answers_.push_back(absl::UnknownError("no answer"));
  }

  const Promise<MeshResult<R>>& promise() const { return *promise_; }

  void set(std::size_t member, absl::StatusOr<IncomingPayload> in) {
    answers_[member] = std::move(in);
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const Promise<MeshResult<R>> promise = *std::exchange(promise_, std::nullopt);
    if (cancelled_) return;
    std::vector<StreamFencePtr> fences;
    for (absl::StatusOr<IncomingPayload>& answer : answers_) {
      if (answer.ok()) fences.push_back(std::move(answer->fence));
    }
    promise.set_lazy(std::make_unique<LazyMeshResult<R>>(std::move(label_), std::move(answers_), agent_),
                     join_fences(std::move(fences)));
  }

  // The future has been cancelled: it gets no answers any more.
  void cancel() { cancelled_ = true; }

 private:
  const std::weak_ptr<Agent> agent_;
  CallLabel label_;
  std::vector<absl::StatusOr<IncomingPayload>> answers_;
  std::atomic<std::size_t> missing_;
  std::atomic<bool> cancelled_{false};
  std::optional<Promise<MeshResult<R>>> promise_;
};

// Sends the calls. `ids`, if not nullptr, receives their ids.
template <class R>
Future<MeshResult<R>> gather(const std::shared_ptr<Agent>& agent, GroupCall& group, CallLabel label,
                             const std::vector<MemberTarget>& members, std::vector<uint64_t>* ids = nullptr) {
  const auto gathering = std::make_shared<Gathering<R>>(agent, std::move(label), members.size());
  // The last answer takes the promise out of the object, perhaps before this function returns.
  const Promise<MeshResult<R>> promise = gathering->promise();
  std::vector<uint64_t> sent;
  for (std::size_t i = 0; i < members.size(); ++i) {
    sent.push_back(send_to(agent, group, members[i], i, [gathering, i](absl::StatusOr<IncomingPayload> in) {
      gathering->set(i, std::move(in));
    }));
  }
  if (ids != nullptr) *ids = sent;
  // The callback is stored with the promise, so it must hold the object weakly.
  promise.on_cancel([weak = agent->weak_from_this(), sent = std::move(sent),
                     weak_gathering = std::weak_ptr<Gathering<R>>(gathering)] {
    if (const auto alive = weak_gathering.lock()) alive->cancel();
    cancel_all(weak, sent, absl::CancelledError("cancelled by the caller"));
  });
  return promise.future();
}

// As above, and waits for all answers. The calls borrow the tensors of the caller, and do not use them any
// more when this returns.
template <class R>
MeshResult<R> gather_now(const std::shared_ptr<Agent>& agent, GroupCall& group, CallLabel label,
                         const std::vector<MemberTarget>& members) {
  group.borrow_tensors();
  std::vector<uint64_t> ids;
  auto result = future_internal::take_result(gather<R>(agent, group, std::move(label), members, &ids));
  if (!result.ok()) cancel_all(agent, ids, result.status());
  return value_or_throw(std::move(result));
}

// The race for the first successful answer.
template <class R>
class Race {
 public:
  Race(const std::shared_ptr<Agent>& agent, CallLabel label, std::size_t members)
      : agent_(agent), label_(std::move(label)) {
    MutexLock lock(mutex_);
    promise_.emplace(agent->executor());
    missing_ = members;
    failures_.resize(members);
  }

  Promise<R> promise() {
    MutexLock lock(mutex_);
    return *promise_;
  }

  // Whether a member has answered.
  bool decided() {
    MutexLock lock(mutex_);
    return decided_;
  }

  // Call when the call with this id has been sent.
  void sent(uint64_t id) {
    bool late = false;
    {
      MutexLock lock(mutex_);
      ids_.push_back(id);
      late = decided_;
    }
    if (late) cancel_all(agent_, {id}, lost());
  }

  // Whether a member has succeeded shows only when its answer is decoded. REQUIRES: the thread may run code
  // of users.
  void set(std::size_t member, absl::StatusOr<IncomingPayload> in) {
    StreamFencePtr fence;
    typename Future<R>::Result result = [&]() -> typename Future<R>::Result {
      if (!in.ok()) return in.status();
      fence = std::move(in->fence);
      return call_internal::decode_answer<R>(*std::move(in));
    }();
    const absl::Status status = future_internal::status_of(result);
    std::vector<uint64_t> others;
    std::vector<MemberFailure> failures;
    std::optional<Promise<R>> promise;
    {
      MutexLock lock(mutex_);
      if (!decided_) {
        if (!status.ok()) failures_[member] = {(*label_.names)[member], status};
        if (!status.ok() && --missing_ > 0) return;
        decided_ = true;
        others = ids_;
        failures = failures_;
        promise.swap(promise_);
      }
    }
    if (!promise) return;
    if (!status.ok()) {
      promise->set_error(failure_of_members(label_.action, failures.size(), label_.timeout, failures));
      return;
    }
    cancel_all(agent_, others, lost());
    promise->set_result(std::move(result), std::move(fence));
  }

  void cancel() {
    std::vector<uint64_t> ids;
    {
      MutexLock lock(mutex_);
      decided_ = true;
      ids = ids_;
    }
    cancel_all(agent_, ids, absl::CancelledError("cancelled by the caller"));
  }

 private:
  static absl::Status lost() { return absl::CancelledError("another member has answered first"); }

  const std::weak_ptr<Agent> agent_;
  const CallLabel label_;
  Mutex mutex_;
  // Taken by the thread that completes it.
  std::optional<Promise<R>> promise_ ABSL_GUARDED_BY(mutex_);
  bool decided_ ABSL_GUARDED_BY(mutex_) = false;
  std::size_t missing_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> ids_ ABSL_GUARDED_BY(mutex_);
  std::vector<MemberFailure> failures_ ABSL_GUARDED_BY(mutex_);
};

// Sends the calls until one of them has been answered.
template <class R>
Future<R> race(const std::shared_ptr<Agent>& agent, GroupCall& group, CallLabel label,
               const std::vector<MemberTarget>& members) {
  const auto race = std::make_shared<Race<R>>(agent, std::move(label), members.size());
  // The decision takes the promise out of the object, perhaps before this function returns.
  const Promise<R> promise = race->promise();
  for (std::size_t i = 0; i < members.size() && !race->decided(); ++i) {
    race->sent(send_to(agent, group, members[i], i,
                       [race, i, weak = agent->weak_from_this(),
                        executor = agent->executor()](absl::StatusOr<IncomingPayload> in) mutable {
                         executor->run_off_duty([race, i, weak, in = std::move(in)]() mutable {
                           call_internal::destroy_as(weak, [&] { race->set(i, std::move(in)); });
                         });
                       }));
  }
  // The callback is stored with the promise, so it must hold the race weakly.
  promise.on_cancel([weak = std::weak_ptr<Race<R>>(race)] {
    if (const std::shared_ptr<Race<R>> alive = weak.lock()) alive->cancel();
  });
  return promise.future();
}

}  // namespace gradwire::rpc::mesh_internal
