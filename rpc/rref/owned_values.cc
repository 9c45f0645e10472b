#include "gradwire/rpc/rref/owned_values.h"

#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/callee/server_call.h"

namespace gradwire::rpc {
namespace {

using Actions = References::Actions;
using Tables = ReferenceDriver::Tables;
using Waiter = ValueSlot::Waiter;

// How long an RRef that is unknown here is waited for.
constexpr absl::Duration kGrace = absl::Seconds(10);

}  // namespace

void OwnedValues::begin(const Id& rref, const Id& fork, const Worker& holder) {
  driver_.tell([&](Tables& tables, Actions& actions) {
    tables.references.create(rref, fork, holder.incarnation, actions);
    // It may be unwanted already: its creator is dead, or has deleted it.
    if (tables.references.owner().contains(rref)) tables.values.try_emplace(rref);
  });
}

void OwnedValues::set(const Id& rref, absl::StatusOr<OwnedValue> value) {
  if (value.ok() && value->type->serial()) value->strand = std::make_shared<Strand>(agent_.executor());
  bool announcing = false;
  driver_.tell([&](Tables& tables, Actions&) {
    // Nobody refers to it any more: `value` goes when set() returns.
    if (!tables.references.owner().contains(rref)) return;
    ValueSlot& slot = tables.values[rref];
    if (slot.value.has_value()) return;
    slot.value = value;
    slot.announcing = announcing = true;
  });
  while (announcing) {
    std::list<Waiter> waiters;
    driver_.tell([&](Tables& tables, Actions&) {
      auto slot = tables.values.find(rref);
      if (slot == tables.values.end()) return;  // Freed meanwhile.
      waiters.swap(slot->second.waiters);
      if (waiters.empty()) slot->second.announcing = false;
    });
    announcing = !waiters.empty();
    for (Waiter& waiter : waiters) {
      agent_.timers().cancel(waiter.timer);
      waiter.found(value);
    }
  }
}

void OwnedValues::find(const Id& rref, absl::Time deadline, ValueSlot::Found found) {
  std::optional<absl::StatusOr<OwnedValue>> value;
  const bool open = driver_.tell([&](Tables& tables, Actions&) {
    ValueSlot& slot = tables.values[rref];
    const uint64_t number = next_waiter_.fetch_add(1);
    if (slot.announcing) {
      slot.waiters.push_back({number, 0, std::move(found)});
    } else if (slot.value.has_value()) {
      value = slot.value;
    } else {
      const absl::Time grace_end = agent_.timers().clock().now() + kGrace;
      const bool grace = !tables.references.owner().contains(rref) && grace_end < deadline;
      // The timers end before this does.
      const uint64_t timer = agent_.timers().schedule(
          grace ? grace_end : deadline,
          [this, rref, number, deadline, grace] { expire(rref, number, deadline, grace); });
      slot.waiters.push_back({number, timer, std::move(found)});
    }
  });
  if (!open) value = absl::FailedPreconditionError("the agent has been shut down");
  if (value.has_value()) found(*std::move(value));
}

void OwnedValues::expire(const Id& rref, uint64_t number, absl::Time deadline, bool grace) {
  std::list<Waiter> expired;
  bool known = false;
  driver_.tell([&](Tables& tables, Actions&) {
    auto slot = tables.values.find(rref);
    if (slot == tables.values.end()) return;
    known = tables.references.owner().contains(rref);
    std::list<Waiter>& waiters = slot->second.waiters;
    auto waiter = std::find_if(waiters.begin(), waiters.end(),
                               [number](const Waiter& w) { return w.number == number; });
    if (waiter == waiters.end()) return;
    if (known && grace) {
      // The creating request came meanwhile: the value is being made.
      waiter->timer = agent_.timers().schedule(
          deadline, [this, rref, number, deadline] { expire(rref, number, deadline, /*grace=*/false); });
      return;
    }
    expired.splice(expired.end(), waiters, waiter);
    if (!known && waiters.empty()) tables.values.erase(slot);
  });
  if (expired.empty()) return;
  expired.front().found(
      known ? absl::DeadlineExceededError(
                  absl::StrCat("the value of RRef ", to_string(rref), " was not made in time"))
            : absl::NotFoundError(absl::StrCat("worker \"", agent_.self().name, "\" owns no RRef ",
                                               to_string(rref), ": it was freed, or its creation failed")));
}

void OwnedValues::serve_creation_failed(const ServiceCall& call) {
  proto::CreationFailed message;
  if (!message.ParseFromString(call.body)) {
    call.reply(absl::InvalidArgumentError("not a reference message: CreationFailed"));
    return;
  }
  const Id rref = from_proto(message.rref());
  const absl::Status failed =
      absl::AbortedError("the request that was to make the value failed before it came here");
  bool waited_for = false;
  std::list<Waiter> waiters;
  driver_.tell([&](Tables& tables, Actions&) {
    // The request has not come: others may wait for the value all the same, who got a reference to it. Should
    // it come after this, it comes too late.
    auto slot = tables.values.find(rref);
    waited_for = slot != tables.values.end() && !slot->second.value.has_value() &&
                 rref.origin == call.from.incarnation &&
                 !tables.references.owner().has_fork(rref, from_proto(message.fork()));
    // Calls alone wait for it, without a fork: what keeps the error for others would have nobody to let it
    // go.
    if (waited_for && !tables.references.owner().contains(rref)) {
      waiters.swap(slot->second.waiters);
      tables.values.erase(slot);
    }
  });
  if (waited_for) set(rref, failed);
  for (Waiter& waiter : waiters) {
    agent_.timers().cancel(waiter.timer);
    waiter.found(failed);
  }
  call.reply(ServiceReply());
}

}  // namespace gradwire::rpc
