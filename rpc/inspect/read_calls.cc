#include "gradwire/rpc/inspect/read_calls.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/rpc/flight/call_origin.h"
#include "gradwire/rpc/inspect/limits.h"

namespace gradwire::rpc {
namespace {

using Functions = absl::flat_hash_map<std::string, proto::FunctionState>;

void to_proto(const CallIdentity& identity, proto::CallIdentity& out) {
  out.set_caller(identity.caller);
  out.set_call_id(identity.number);
}

void describe(const CallReport& call, absl::Time now, proto::CallSummary& out) {
  to_proto(call.identity, *out.mutable_identity());
  out.set_callee(std::string(cut_name(call.callee)));
  out.set_peer(call.peer);
  out.set_age_us(std::max<int64_t>(0, absl::ToInt64Microseconds(now - call.since)));
  out.set_left_us(call.deadline == absl::InfiniteFuture()
                      ? -1
                      : std::max<int64_t>(0, absl::ToInt64Microseconds(call.deadline - now)));
  out.set_stage(static_cast<proto::CallSummary::Stage>(call.state));
  if (call.parent) to_proto(call.parent, *out.mutable_parent());
}

// Moves the `most` oldest calls to the front, in order, and drops the others.
void keep_oldest(std::vector<CallReport>& calls, uint32_t most) {
  const auto older = [](const CallReport& a, const CallReport& b) { return a.since < b.since; };
  const std::size_t kept = std::min<std::size_t>(most, calls.size());
  std::partial_sort(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(kept), calls.end(), older);
  calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(kept), calls.end());
}

void count(const std::vector<CallReport>& calls, absl::Time now,
           uint64_t (proto::FunctionState::*get)() const, void (proto::FunctionState::*set)(uint64_t),
           Functions& functions) {
  for (const CallReport& call : calls) {
    proto::FunctionState& function = functions[call.callee];
    (function.*set)((function.*get)() + 1);
    const int64_t age = std::max<int64_t>(0, absl::ToInt64Microseconds(now - call.since));
    function.set_oldest_us(std::max(function.oldest_us(), age));
  }
}

void read_functions(Functions functions, uint32_t most, proto::AgentState& state) {
  std::vector<std::pair<std::string, proto::FunctionState>> sorted(functions.begin(), functions.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const uint64_t calls_a = a.second.pending() + a.second.served();
    const uint64_t calls_b = b.second.pending() + b.second.served();
    return calls_a != calls_b ? calls_a > calls_b : a.first < b.first;
  });
  if (sorted.size() > most) sorted.resize(most);
  for (auto& [name, function] : sorted) {
    function.set_callee(std::string(cut_name(name)));
    *state.add_functions() = std::move(function);
  }
}

}  // namespace

void read_calls(OpenCalls calls, const TurnWaits& turns, uint32_t most, absl::Time now,
                proto::AgentState& state) {
  std::vector<CallReport>& made = calls.made;
  std::vector<CallReport>& served = calls.served;
  find_nested(made, served);
  const std::size_t all = made.size();
  std::erase_if(made, [](const CallReport& call) { return call.is_service; });
  state.set_pending_services(all - made.size());
  state.set_pending_total(made.size());
  state.set_served_total(served.size());
  Functions functions;
  count(made, now, &proto::FunctionState::pending, &proto::FunctionState::set_pending, functions);
  count(served, now, &proto::FunctionState::served, &proto::FunctionState::set_served, functions);
  read_functions(std::move(functions), most, state);
  keep_oldest(made, most);
  for (const CallReport& call : made) describe(call, now, *state.add_pending());
  keep_oldest(served, most);
  absl::flat_hash_map<CallIdentity, TurnWaits::Holder> holders;
  for (TurnWaits::Wait& wait : turns.waits()) {
    holders.insert_or_assign(wait.waiter, std::move(wait.holder));
  }
  for (const CallReport& call : served) {
    proto::CallSummary& out = *state.add_served();
    describe(call, now, out);
    const auto holder = holders.find(call.identity);
    if (holder == holders.end()) continue;
    to_proto(holder->second.call, *out.mutable_waits_for());
    out.set_waits_for_callee(std::string(cut_name(holder->second.callee)));
  }
}

}  // namespace gradwire::rpc
