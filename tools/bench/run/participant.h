#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/bench/report/statistics.h"

namespace gradwire::bench {

// Where a member of a side stands among its fellows.
struct Place {
  int rank = 0;
  int size = 1;
  std::string transport;
  // What each member's listen() returned, by rank. Empty in listen().
  std::vector<std::string> addresses;
  // Where member 0 is reached.
  std::string host = "127.0.0.1";
};

// The task, beyond the cases, of saying what contact with the others costs (footprint.h).
inline constexpr char kFootprintCase[] = "footprint";

// What one member is to do now.
struct Task {
  std::string case_name;
  double seconds = 1;
  // Calls in flight, where the case has that.
  int depth = 1;
  // Not the case's latency: what else the side has to say of it, as figures of its own (kTraining).
  bool beside = false;
};

// One process of one side: of Gradwire, of a peer, or of the machine's own floor. The coordinator calls
// listen() on all members, then join() on all at the same time, then run(), mostly on the last member alone;
// the others serve meanwhile on threads of their own. What a method throws ends the member, and is reported.
// Between the calls nothing may spin.
class Participant {
 public:
  virtual ~Participant() = default;
  virtual std::string listen(const Place& /*place*/) { return ""; }
  virtual void join(const Place& /*place*/) {}
  virtual Measurement run(const Task& task) = 0;
};

using ParticipantFactory = std::function<std::unique_ptr<Participant>()>;

}  // namespace gradwire::bench
