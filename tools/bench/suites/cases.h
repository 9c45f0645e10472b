#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradwire::bench {

// How a case is run.
enum class CaseKind : uint8_t {
  kLatency,   // The last member calls, one call after the other; beyond two members in a group of its own.
  kInFlight,  // The last member calls, many at a time; swept over how many.
  kOversubscribed,  // Four members on two cores call one another.
  kQueued,          // The last member calls the first while many calls to the others are pending.
  kFirstContact,    // Every member of a fresh group calls every other once.
  kKilledPeer,      // The last member of a fresh group kills the second, and times how that shows.
  kCutLink,         // The same with a network whose link to the second member is cut.
  kTraining,        // As kLatency, and afterwards every side says by itself what else it has found.
  kTogether,        // All members make one call together, and the first times it.
  kIdle,            // Nobody calls.
};

struct CaseSpec {
  std::string suite;
  std::string name;
  CaseKind kind = CaseKind::kLatency;
  // Moved per call, both ways together, for GB_per_s.
  int64_t bytes_per_call = 0;
  int members = 2;
  // Of the time that other cases get.
  double weight = 1;
  // The plot in which its p50 over `bytes_per_call` stands; empty: none.
  std::string plot;
  // Run only when it is named.
  bool on_request = false;
  // The only transport over which it means something; empty: every one of the suite.
  std::string transport;
};

// One kind of process that can be measured.
struct RoleSpec {
  std::string role;
  // In --json: "gradwire" for ourselves.
  std::string name;
  // What selects it in --peers; empty: always, as ourselves and the machine's own floors.
  std::string peer_flag;
  std::string suite;
  std::vector<std::string> transports;
  // The operations it knows; empty: every one of the suite.
  std::vector<std::string> operations;
  int members = 2;
  // Its processes are stopped while others are measured: they would spin although nobody calls.
  bool spins = false;
  // One process, which starts those that a case wants.
  bool starts_members = false;
};

const std::vector<std::string>& suites();
const std::vector<CaseSpec>& cases();
const std::vector<RoleSpec>& roles();

// The transports of a suite, best first.
std::vector<std::string> transports_of(absl::string_view suite);
bool knows(const RoleSpec& role, const CaseSpec& spec);

}  // namespace gradwire::bench
