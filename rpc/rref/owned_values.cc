#include "gradwire/rpc/rref/owned_values.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/nested_callbacks.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/order/fence_watch.h"
#include "gradwire/rpc/order/stream_order.h"
#include "gradwire/rpc/registry/server_call.h"

namespace gradwire::rpc {
namespace {

using Actions = References::Actions;
using Tables = ReferenceDriver::Tables;
using Waiter = ValueSlot::Waiter;
using Waiters = ValueSlot::Waiters;

// Time to wait for the creating request of an unknown RRef.
constexpr absl::Duration kGrace = absl::Seconds(10);

// Devices may still use the memory of a value when the last reference to it is dropped, on streams that the
// allocator does not know. So the value is destroyed when they have reached the end of its uses.
void keep_for_devices(OwnedValue& owned, const std::weak_ptr<FenceWatch>& fences) {
  std::shared_ptr<void> value = std::move(owned.value);
  void* const address = value.get();
  owned.value =
      std::shared_ptr<void>(address, [value = std::move(value), order = owned.order, fences](void*) mutable {
        StreamFencePtr used = order->fence();
        const std::shared_ptr<FenceWatch> watch = fences.lock();
        if (watch == nullptr || used == nullptr || used->reached().value_or(true)) return;
        watch->watch(std::move(used),
                     [value = std::move(value)](const absl::Status&) mutable { value = nullptr; });
      });
}

}  // namespace

void OwnedValues::begin(const Id& rref, const Id& fork, const Worker& holder) {
  driver_.apply([&](Tables& tables, Actions& actions) {
    tables.references.create(rref, fork, holder.incarnation, actions);
    // There is no entry when its creator is dead, or has deleted the fork already.
    if (tables.references.owner().contains(rref)) tables.values.try_emplace(rref);
  });
}

void OwnedValues::set(const Id& rref, absl::StatusOr<OwnedValue> value) {
  if (value.ok() && value->type->serial()) value->strand = std::make_shared<Strand>(agent_.executor());
  if (value.ok()) {
    value->order = agent_.stream_order();
    if (value->order != nullptr) {
      value->order->add();
      keep_for_devices(*value, agent_.fences());
    }
  }
  bool waited_for = false;
  driver_.apply([&](Tables& tables, Actions&) {
    // Without references `value` is destroyed when set() returns.
    if (!tables.references.owner().contains(rref)) return;
    ValueSlot& slot = tables.values[rref];
    if (slot.value.has_value()) return;
    slot.value = value;
    slot.delivering = waited_for = !slot.waiters.empty();
  });
  if (!waited_for) return;
  // A call that gets an error here ends, and passes it on to the calls that wait for its own result, and so
  // on. The callback may run after the call that set the value has dropped the agent. Without it these calls,
  // and all later ones, would wait.
  run_or_end("the delivery of a value", [&] {
    run_nested(
        [this, agent = agent_.weak_agent().lock(), rref, value = std::move(value)] { deliver(rref, value); },
        "the delivery of a value");
  });
}

// The calls that wait were queued in the order of their arrival, and must go on in this order. A call that
// arrives now must not overtake them. So:
//   1. set() has set `delivering`. find() then queues new calls behind the waiters instead of calling them
//      back.
//   2. The loop below calls the waiters without the lock, in batches, because each may add further ones.
//   3. When no waiter is left, `delivering` is cleared under the lock. From then on find() answers at once.
void OwnedValues::deliver(const Id& rref, const absl::StatusOr<OwnedValue>& value) {
  while (true) {
    Waiters waiters;
    driver_.apply([&](Tables& tables, Actions&) {
      auto slot = tables.values.find(rref);
      if (slot == tables.values.end()) return;  // Freed meanwhile.
      waiters = tables.take_waiters(slot->second);
      if (waiters.empty()) slot->second.delivering = false;
    });
    if (waiters.empty()) return;
    for (auto& [number, waiter] : waiters) {
      // The timer may run already. It then finds no waiter, because the waiters were taken under the lock.
      agent_.timers().cancel(waiter.timer);
      waiter.found(value);
    }
  }
}

uint64_t OwnedValues::find(const Id& rref, absl::Time deadline, ValueSlot::Found found) {
  const uint64_t number = next_wait_.fetch_add(1);
  std::optional<absl::StatusOr<OwnedValue>> value;
  const bool open = driver_.apply([&](Tables& tables, Actions&) {
    // Also for an unknown RRef: its creating request may be on another connection. take_waiter() removes
    // the slot again.
    ValueSlot& slot = tables.values[rref];
    if (slot.value.has_value() && !slot.delivering) {
      value = slot.value;
      return;
    }
    uint64_t timer = 0;
    if (!slot.delivering) {
      const absl::Time grace_end = agent_.timers().clock().now() + kGrace;
      // An unknown RRef may also be one that was freed, or never made. So a call waits only a short time for
      // it, and its caller learns the reason before its deadline.
      const bool grace = !tables.references.owner().contains(rref) && grace_end < deadline;
      // The timer queue is stopped before this object is destroyed.
      timer = agent_.timers().schedule(grace ? grace_end : deadline, [this, rref, number, deadline, grace] {
        expire(rref, number, deadline, grace);
      });
    }
    slot.waiters.emplace(number, Waiter{timer, std::move(found)});
    ++tables.waits;
  });
  if (!open) value = absl::FailedPreconditionError("the agent has been shut down");
  if (!value.has_value()) return number;
  found(*std::move(value));
  return 0;
}

void OwnedValues::give_up(const Id& rref, uint64_t wait, const absl::Status& reason) {
  std::optional<Waiter> ended;  // Called and destroyed without the lock.
  driver_.apply([&](Tables& tables, Actions&) { ended = tables.take_waiter(rref, wait); });
  if (!ended) return;
  agent_.timers().cancel(ended->timer);
  ended->found(reason);
}

void OwnedValues::expire(const Id& rref, uint64_t wait, absl::Time deadline, bool grace) {
  std::optional<Waiter> expired;
  bool known = false;
  driver_.apply([&](Tables& tables, Actions&) {
    known = tables.references.owner().contains(rref);
    // Taken out under the lock: set(), give_up() and expire() compete for a waiter.
    if (!known || !grace) {
      expired = tables.take_waiter(rref, wait);
      return;
    }
    // The creating request arrived meanwhile: the value is being made. Wait until the deadline.
    Waiter* const waiter = tables.find_waiter(rref, wait);
    if (waiter == nullptr) return;
    waiter->timer = agent_.timers().schedule(
        deadline, [this, rref, wait, deadline] { expire(rref, wait, deadline, /*grace=*/false); });
  });
  if (!expired) return;
  expired->found(known ? absl::DeadlineExceededError(
                             absl::StrCat("the value of RRef ", to_string(rref), " was not made in time"))
                       : absl::NotFoundError(absl::StrCat("RRef ", to_string(rref), " not found on worker \"",
                                                          agent_.self().name,
                                                          "\": it was freed, or its creation failed")));
}

void OwnedValues::serve_creation_failed(const ServiceCall& call) {
  proto::CreationFailed message;
  if (!message.ParseFromString(call.body)) {
    call.reply(absl::InvalidArgumentError("malformed reference message CreationFailed"));
    return;
  }
  const Id rref = from_proto(message.rref());
  const absl::Status failed = absl::AbortedError(
      "cannot create the value of the RRef: the creating request failed before it arrived");
  bool waited_for = false;
  Waiters waiters;
  driver_.apply([&](Tables& tables, Actions&) {
    // The creating request has not arrived, but other workers that received a reference may wait for the
    // value. If the request arrives later, it has no effect.
    auto slot = tables.values.find(rref);
    waited_for = slot != tables.values.end() && !slot->second.value.has_value() &&
                 // Only the worker that allocated the id may report the failure.
                 rref.origin == call.from.incarnation &&
                 !tables.references.owner().has_fork(rref, from_proto(message.fork()));
    // Only calls wait for the value, and no fork refers to it. An entry with the error would never be
    // removed, so end the waits and remove the entry.
    if (waited_for && !tables.references.owner().contains(rref)) {
      waiters = tables.take_waiters(slot->second);
      tables.values.erase(slot);
    }
  });
  if (waited_for) set(rref, failed);
  driver_.call_back(std::move(waiters), failed);
  call.reply(ServiceReply());
}

}  // namespace gradwire::rpc
