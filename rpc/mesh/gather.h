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
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/function_traits.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/mesh/group_call.h"
#include "gradwire/rpc/mesh/mesh_call.h"
#include "gradwire/rpc/mesh_result.h"

// Sends one call to all members of a mesh, and collects the answers.
namespace gradwire::rpc::mesh_internal {

// Decodes the answer to a call as an R. `fence`: after it the value may be read.
template <class R>
typename Future<R>::Result decode_answer(absl::StatusOr<IncomingPayload> in, StreamFencePtr& fence) {
  using V = ValueOf<R>;
  if (!in.ok()) return in.status();
  if (in->payload->values_size() != 1)
    return absl::InvalidArgumentError("malformed answer: expected exactly one value");
  absl::StatusOr<V> value = [&]() -> absl::StatusOr<V> {
    try {
      Decoder decoder = in->decoder();
      return decode_value<V>(in->payload->values(0), decoder);
    } catch (...) {
      // A Codec of the user has thrown.
      return status_from_exception(std::current_exception());
    }
  }();
  if (!value.ok()) return with_context(value.status(), "decoding the answer");
  fence = std::move(in->fence);
  if constexpr (std::is_void_v<R>) {
    return absl::OkStatus();
  } else {
    return typename Future<R>::Result(absl::in_place, *std::move(value));
  }
}

// Destroys values of the user that nobody waits for. Their destructors may make calls, so they run on the
// executor, and not on the thread that received the values.
template <class V>
void drop_later(const std::weak_ptr<Agent>& agent, V values) {
  const std::shared_ptr<Agent> alive = agent.lock();
  if (alive == nullptr) return;
  alive->executor()->post_or_run([agent, values = std::move(values)]() mutable {
    const std::shared_ptr<Agent> current = agent.lock();
    if (current == nullptr) return;
    AgentGuard guard(current);
    [[maybe_unused]] const V last = std::move(values);
  });
}

// The answers to one call of all members. Each entry is written by the thread that completes the member's
// call. The thread that completes the last one reads all of them.
template <class R>
class Gathering {
 public:
  Gathering(const std::shared_ptr<Agent>& agent, CallLabel label, std::size_t members)
      : agent_(agent),
        label_(std::move(label)),
        answers_(members, typename MeshResult<R>::Member(absl::UnknownError("no answer"))),
        fences_(members),
        missing_(members),
        promise_(agent->executor()) {}

  const Promise<MeshResult<R>>& promise() const { return *promise_; }

  void set(std::size_t member, absl::StatusOr<IncomingPayload> in) {
    answers_[member] = decode_answer<R>(std::move(in), fences_[member]);
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    Promise<MeshResult<R>> promise = *std::exchange(promise_, std::nullopt);
    if (cancelled_) {
      drop_later(agent_, std::move(answers_));
      return;
    }
    promise.set_result(MeshResult<R>(std::move(label_), std::move(answers_)),
                       join_fences(std::move(fences_)));
    if (promise.unobserved()) drop_later(agent_, std::move(promise));
  }

  // The future has been cancelled: it gets no answers any more.
  void cancel() { cancelled_ = true; }

 private:
  const std::weak_ptr<Agent> agent_;
  CallLabel label_;
  std::vector<typename MeshResult<R>::Member> answers_;
  std::vector<StreamFencePtr> fences_;
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

  void set(std::size_t member, absl::StatusOr<IncomingPayload> in) {
    StreamFencePtr fence;
    typename Future<R>::Result result = decode_answer<R>(std::move(in), fence);
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
    if (!promise) {
      if (status.ok()) drop_later(agent_, std::move(result));
      return;
    }
    if (!status.ok()) {
      promise->set_error(failure_of_members(label_.action, failures.size(), label_.timeout, failures));
      return;
    }
    cancel_all(agent_, others, lost());
    promise->set_result(std::move(result), std::move(fence));
    if (promise->unobserved()) drop_later(agent_, std::move(promise));
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
                       [race, i](absl::StatusOr<IncomingPayload> in) { race->set(i, std::move(in)); }));
  }
  // The callback is stored with the promise, so it must hold the race weakly.
  promise.on_cancel([weak = std::weak_ptr<Race<R>>(race)] {
    if (const std::shared_ptr<Race<R>> alive = weak.lock()) alive->cancel();
  });
  return promise.future();
}

}  // namespace gradwire::rpc::mesh_internal
