#include "gradwire/rpc/inspect/read_rrefs.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/rpc/callee/server_call.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/rref/reference_driver.h"

namespace gradwire::rpc {
namespace {

struct Group {
  uint64_t count = 0;
  absl::Time oldest = absl::InfiniteFuture();
  bool holder_lost = false;
};
// By type, which may be nullptr, and holder.
using Groups = absl::flat_hash_map<std::pair<const TypeOps*, uint64_t>, Group>;
using Owners = absl::flat_hash_map<uint64_t, uint64_t>;

// Runs with the driver's lock held.
bool group_owned(const ReferenceDriver::Tables& tables, Groups& groups) {
  std::size_t visited = 0;
  tables.references.owner().each_holder([&](const Id& rref, uint64_t holder, bool lost) {
    const auto slot = tables.values.find(rref);
    const bool made =
        slot != tables.values.end() && slot->second.value.has_value() && slot->second.value->ok();
    Group& group = groups[{made ? (*slot->second.value)->type : nullptr, holder}];
    ++group.count;
    if (slot != tables.values.end()) group.oldest = std::min(group.oldest, slot->second.since);
    group.holder_lost |= lost;
    return ++visited < kMostVisited;
  });
  return visited >= kMostVisited;
}

bool group_held(const ReferenceDriver::Tables& tables, Owners& owners) {
  std::size_t visited = 0;
  tables.references.holder().each_owner([&](uint64_t owner) {
    ++owners[owner];
    return ++visited < kMostVisited;
  });
  return visited >= kMostVisited;
}

}  // namespace

void read_rrefs(const ReferenceDriver& driver, uint32_t most, absl::Time now, proto::AgentState& state) {
  Groups groups;
  Owners owners;
  bool partial = false;
  driver.view([&](const ReferenceDriver::Tables& tables) {
    state.set_rrefs_total(tables.references.owner().size());
    partial = group_owned(tables, groups);
    partial |= group_held(tables, owners);
  });
  if (partial) state.set_partial(true);
  std::vector<proto::RRefState> rrefs;
  for (const auto& [key, group] : groups) {
    proto::RRefState& entry = rrefs.emplace_back();
    if (key.first != nullptr) entry.set_type(std::string(cut_name(key.first->name())));
    entry.set_holder(key.second);
    entry.set_count(group.count);
    entry.set_oldest_us(
        group.oldest == absl::InfiniteFuture() ? -1 : absl::ToInt64Microseconds(now - group.oldest));
    entry.set_holder_lost(group.holder_lost);
  }
  std::sort(rrefs.begin(), rrefs.end(), [](const auto& a, const auto& b) {
    return std::make_tuple(b.count(), a.type(), a.holder()) <
           std::make_tuple(a.count(), b.type(), b.holder());
  });
  if (rrefs.size() > most) rrefs.resize(most);
  for (proto::RRefState& entry : rrefs) *state.add_rrefs() = std::move(entry);
  std::vector<std::pair<uint64_t, uint64_t>> held(owners.begin(), owners.end());
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return std::make_pair(b.second, a.first) < std::make_pair(a.second, b.first);
  });
  if (held.size() > most) held.resize(most);
  for (const auto& [owner, count] : held) {
    proto::HeldState& entry = *state.add_held();
    entry.set_owner(owner);
    entry.set_count(count);
  }
}

}  // namespace gradwire::rpc
