#pragma once

#include <string>
#include <vector>

#include "gradwire/tools/bench/report/statistics.h"

namespace gradwire::bench {

// The address data of one member of a system: its rank, and how it reaches the other members.
struct Endpoint {
  int rank = 0;
  int size = 1;
  std::string transport;
  // By rank: the address that the member's listen() returned. Empty during listen().
  std::vector<std::string> addresses;
  // The host of member 0.
  std::string host = "127.0.0.1";
};

// The name of a task that is not a case: report what the connections to the other members cost (footprint.h).
inline constexpr char kFootprintCase[] = "footprint";

// One run of a case at one member.
struct Task {
  std::string case_name;
  double seconds = 1;
  // Number of calls in flight, in cases that have this parameter.
  int depth = 1;
  // Measure the extra figures of the case instead of its latency (CaseKind::kTraining).
  bool extra_figures = false;
};

// One process of one system. A system is Gradwire, a peer, or a floor: a lower bound that the machine sets.
//
// The coordinator calls listen() on all members, then join() on all members at the same time, then run(), in
// most cases on the last member only. The other members serve it on threads of their own. An exception from a
// method is reported to the coordinator, which then ends the system. No thread may spin between the calls.
class BenchProcess {
 public:
  virtual ~BenchProcess() = default;
  // Returns the address of this member; empty if it has none.
  virtual std::string listen(const Endpoint& /*endpoint*/) { return ""; }
  // Connects to the other members.
  virtual void join(const Endpoint& /*endpoint*/) {}
  // Measures a case. Throws if a result is wrong.
  virtual Measurement run(const Task& task) = 0;
};

}  // namespace gradwire::bench
