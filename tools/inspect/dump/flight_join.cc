#include "gradwire/tools/inspect/dump/flight_join.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::tools {
namespace {

using rpc::CallIdentity;

// Chains are printed with their depth, and a malformed file may claim any.
constexpr int kMaxDepth = 64;

// The two ends of a call.
struct Ends {
  const FlightCall* made = nullptr;
  const FlightFile* made_in = nullptr;
  const FlightCall* served = nullptr;
  const FlightFile* served_in = nullptr;
};
using Calls = HashMap<CallIdentity, Ends>;

int64_t wall(const FlightFile& file, int64_t time) { return time - file.clock_ns + file.wall_ns; }

// Whether `a` says more about a call than `b`, a record of the same end in an earlier or later file.
bool says_more(const FlightCall& a, const FlightCall& b) {
  if (a.open() != b.open()) return b.open();
  return b.state.empty() && !a.state.empty();
}

Calls collect(const std::vector<FlightFile>& files) {
  Calls calls;
  for (const FlightFile& file : files) {
    for (const FlightCall& call : file.calls) {
      // A worker can record only its own calls.
      if (call.made && call.identity.caller != file.incarnation) continue;
      Ends& ends = calls[call.identity];
      const FlightCall*& place = call.made ? ends.made : ends.served;
      if (place != nullptr && !says_more(call, *place)) continue;
      // The callee is the one that the caller names.
      place = &call;
      (call.made ? ends.made_in : ends.served_in) = &file;
    }
  }
  for (auto& [identity, ends] : calls) {
    const bool fits =
        ends.made == nullptr || ends.served == nullptr || ends.made->peer == ends.served_in->incarnation;
    if (!fits) ends.served = nullptr;
  }
  return calls;
}

// For each worker the time, on its wall clock, from which on it has all records; nothing for a worker without
// a file.
HashMap<uint64_t, int64_t> complete_since(const std::vector<FlightFile>& files) {
  HashMap<uint64_t, int64_t> since;
  for (const FlightFile& file : files) {
    if (file.is_group) continue;
    int64_t from = std::numeric_limits<int64_t>::min();
    if (file.recorded > file.capacity) {
      // The ring has overflowed. The oldest call that has ended is in the ring; open calls may be older.
      from = std::numeric_limits<int64_t>::max();
      for (const FlightCall& call : file.calls) {
        if (!call.open()) from = std::min(from, wall(file, call.began));
      }
    }
    auto [found, added] = since.try_emplace(file.incarnation, from);
    if (!added) found->second = std::min(found->second, from);
  }
  return since;
}

// The time of the latest file of each worker, on its wall clock.
HashMap<uint64_t, int64_t> written_at(const std::vector<FlightFile>& files) {
  HashMap<uint64_t, int64_t> times;
  for (const FlightFile& file : files) {
    if (!file.is_group) times[file.incarnation] = std::max(times[file.incarnation], file.wall_ns);
  }
  return times;
}

// `written`: the time of the latest file of each worker, on its wall clock.
std::vector<ClockOffset> clocks_of(const Calls& calls, const HashMap<uint64_t, int64_t>& written) {
  std::map<std::pair<uint64_t, uint64_t>, std::vector<inspect::ClockSample>> samples;
  for (const auto& [identity, ends] : calls) {
    if (ends.made == nullptr || ends.served == nullptr || ends.made->open() || ends.served->open()) continue;
    // After a timeout or a cancellation the end of the call is not the arrival of its answer.
    if (ends.made->code != "OK") continue;
    const uint64_t caller = ends.made_in->incarnation;
    const uint64_t callee = ends.served_in->incarnation;
    if (caller == callee) continue;
    const inspect::ClockSample sample = {
        .sent = wall(*ends.made_in, ends.made->started != 0 ? ends.made->started : ends.made->began),
        .arrived = wall(*ends.served_in, ends.served->began),
        .answered = wall(*ends.served_in, ends.served->ended),
        .received = wall(*ends.made_in, ends.made->ended)};
    // The answer was given after the caller had stopped to wait.
    if (sample.received - sample.sent < sample.answered - sample.arrived) continue;
    // Two workers have one entry, in which the smaller incarnation is the first.
    samples[std::minmax(caller, callee)].push_back(caller < callee ? sample : sample.turned());
  }
  std::vector<ClockOffset> list;
  for (const auto& [workers, of_pair] : samples) {
    // Without a fit one of the clocks was set meanwhile.
    const std::optional<inspect::ClockFit> fit = inspect::fit_clocks(of_pair);
    if (!fit.has_value()) continue;
    const auto now = written.find(workers.first);
    list.push_back({.from = workers.first,
                    .to = workers.second,
                    .fit = *fit,
                    .calls = of_pair.size(),
                    .ahead_ns = fit->lead(now == written.end() ? of_pair.front().sent : now->second),
                    .error_ns = std::llround(fit->error())});
  }
  return list;
}

bool is_open(const Ends& ends) {
  // The callee may have answered a call that is open at its caller.
  return ends.made != nullptr ? ends.made->open() : ends.served->open();
}

int64_t begin_of(const Ends& ends) {
  return ends.made != nullptr ? wall(*ends.made_in, ends.made->began)
                              : wall(*ends.served_in, ends.served->began);
}

// The open calls as trees: below a call those that its handler has made.
class Chains {
 public:
  explicit Chains(const Calls& calls) {
    for (const auto& [identity, ends] : calls) {
      if (is_open(ends)) open_.emplace(identity, &ends);
    }
    for (const auto& [identity, ends] : open_) {
      const FlightParent parent = ends->made == nullptr ? FlightParent() : ends->made->parent;
      const CallIdentity above{parent.worker, parent.number};
      const bool below = parent.kind == FlightParent::Kind::kCall && open_.contains(above);
      (below ? children_[above] : roots_).push_back(identity);
    }
    sort(roots_);
    for (auto& [identity, below] : children_) sort(below);
  }

  std::vector<ChainLink> list() {
    for (const CallIdentity& root : roots_) add(root);
    // The calls that are left form cycles, which only malformed files have. Each call is listed once.
    std::vector<CallIdentity> rest;
    for (const auto& [identity, ends] : open_) {
      if (!listed_.contains(identity)) rest.push_back(identity);
    }
    sort(rest);
    for (const CallIdentity& identity : rest) add(identity);
    return std::move(links_);
  }

 private:
  void sort(std::vector<CallIdentity>& calls) const {
    std::sort(calls.begin(), calls.end(), [this](const CallIdentity& a, const CallIdentity& b) {
      return std::tuple(begin_of(*open_.at(a)), a.caller, a.number) <
             std::tuple(begin_of(*open_.at(b)), b.caller, b.number);
    });
  }
  void add(const CallIdentity& root) {
    std::vector<std::pair<CallIdentity, int>> stack = {{root, 0}};
    while (!stack.empty()) {
      const auto [identity, depth] = stack.back();
      stack.pop_back();
      if (!listed_.insert(identity).second) continue;
      const Ends& ends = *open_.at(identity);
      links_.push_back({depth, ends.made, ends.served});
      const auto below = children_.find(identity);
      if (below == children_.end()) continue;
      for (auto child = below->second.rbegin(); child != below->second.rend(); ++child)
        stack.emplace_back(*child, std::min(depth + 1, kMaxDepth));
    }
  }

  HashMap<CallIdentity, const Ends*> open_;
  HashMap<CallIdentity, std::vector<CallIdentity>> children_;
  std::vector<CallIdentity> roots_;
  HashSet<CallIdentity> listed_;
  std::vector<ChainLink> links_;
};

}  // namespace

FlightJoin join_flight_files(std::vector<FlightFile>& files) {
  FlightJoin join;
  for (const FlightFile& file : files) {
    for (const auto& [incarnation, name] : file.workers) {
      std::string& known = join.names[incarnation];
      if (known.empty() || incarnation == file.incarnation) known = name;
    }
  }
  const Calls calls = collect(files);
  const auto complete = complete_since(files);
  const auto written = written_at(files);
  join.clocks = clocks_of(calls, written);
  std::map<std::pair<uint64_t, uint64_t>, inspect::ClockFit> clocks;
  for (const ClockOffset& offset : join.clocks) {
    clocks[{offset.from, offset.to}] = offset.fit;
    clocks[{offset.to, offset.from}] = offset.fit.inverse();
  }
  // A time of the wall clock of `from`, on that of `to`.
  const auto moved = [&clocks](int64_t time, uint64_t from, uint64_t to) {
    if (const auto found = clocks.find({from, to}); found != clocks.end()) return found->second.map(time);
    return time;
  };
  for (const auto& [identity, ends] : calls) {
    if (ends.made == nullptr) continue;
    const FlightCall& made = *ends.made;
    // A call that waits for its credit, or whose tensors are being copied, was not sent yet.
    const bool was_sent = made.state.empty() || made.state == "sent" || made.state == "between attempts";
    const auto since = complete.find(made.peer);
    if (ends.served == nullptr) {
      if (!was_sent || since == complete.end() || (!made.open() && made.code == "OK")) continue;
      // The callee must have been able to record it: after its oldest record, and before its file.
      const int64_t sent = moved(wall(*ends.made_in, made.started != 0 ? made.started : made.began),
                                 ends.made_in->incarnation, made.peer);
      if (sent >= since->second && sent < written.at(made.peer)) join.never_seen.push_back(&made);
      continue;
    }
    const FlightCall& served = *ends.served;
    const bool given_up = !made.open() && made.code != "OK" && made.code != served.code;
    if (served.open() || !(made.open() || given_up)) continue;
    // The callee may have answered after the caller's file was written.
    const int64_t answered =
        moved(wall(*ends.served_in, served.ended), ends.served_in->incarnation, ends.made_in->incarnation);
    if (made.open() && answered >= ends.made_in->wall_ns) continue;
    join.answers_lost.push_back({&made, &served});
  }
  const auto older = [](const FlightCall* a, const FlightCall* b) {
    return std::tuple(a->identity.caller, a->began, a->identity.number) <
           std::tuple(b->identity.caller, b->began, b->identity.number);
  };
  std::sort(join.never_seen.begin(), join.never_seen.end(), older);
  std::sort(join.answers_lost.begin(), join.answers_lost.end(),
            [&older](const auto& a, const auto& b) { return older(a.made, b.made); });
  join.chains = Chains(calls).list();
  return join;
}

}  // namespace gradwire::tools
