#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradwire::bench {

// How a case is run.
enum class CaseKind : uint8_t {
  kLatency,         // The last member makes sequential calls. More than two members get a group of their own.
  kInFlight,        // The last member has several calls in flight, repeated with different numbers of calls.
  kStream,          // The last member reads one stream of the first, and counts the items.
  kCadence,         // Members on two cores: the upper half calls the lower half and computes between calls.
  kOversubscribed,  // Four members on two cores call one another.
  kTrainStep,       // The last two members are trainers, the first is their parameter server.
  kQueued,          // The last member calls the first while many calls to another member are pending.
  kClients,         // The first member is the server of many connections from the others.
  kFirstContact,    // Every member of a new group calls every other once.
  kKilledPeer,      // The last member of a new group kills the second, and measures until this is detected.
  kCutLink,         // As kKilledPeer, but the network link to the second member is cut.
  kTraining,        // As kLatency; afterwards each system measures its extra figures (Task::extra_figures).
  kTogether,        // All members make a collective call, and the first measures it.
  kIdle,            // No member calls.
};

struct CaseSpec {
  std::string suite;
  std::string name;
  CaseKind kind = CaseKind::kLatency;
  // Bytes moved by a call, the sum of both directions, for GB_per_s. 0: no such figure.
  int64_t bytes_per_call = 0;
  int members = 2;
  // The number of members, the last ones, that run the case at the same time; 0: all.
  int callers = 1;
  // The counts that --cases may name instead of the one in `name`; 0: no other.
  int64_t min_count = 0;
  int64_t max_count = 0;
  // Measuring time relative to other cases.
  double weight = 1;
  // The plot in which the case is a point; empty: none.
  std::string plot;
  // Run only when --cases names it.
  bool on_request = false;
  // The only transport on which the case is meaningful; empty: every transport of the suite.
  std::string transport;
};

// A kind of system that can be measured in a suite.
struct RoleSpec {
  // The value of --participant that starts its processes.
  std::string role;
  // The name in reports and --json; "gradwire" for Gradwire.
  std::string name;
  // The value of --peers that selects it; empty for Gradwire and the floors, which are always measured.
  std::string peer_flag;
  std::string suite;
  std::vector<std::string> transports;
  // The operations that it supports (CaseName::family()); empty: every operation of the suite.
  std::vector<std::string> operations;
  int members = 2;
  // Its idle processes spin, so they are stopped while other systems are measured.
  bool spins = false;
  // The system is one process, which starts the other processes of a case itself.
  bool starts_members = false;
};

// The suite "cuda" needs a GPU, and runs only if it is named.
const std::vector<std::string>& suites();
const std::vector<CaseSpec>& cases();
const std::vector<RoleSpec>& roles();

// The transports of a suite, best first.
std::vector<std::string> transports_of(absl::string_view suite);
// Whether the system can run the case.
bool supports(const RoleSpec& role, const CaseSpec& spec);

}  // namespace gradwire::bench
