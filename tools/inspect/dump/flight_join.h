#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradwire/tools/inspect/dump/flight_file.h"

namespace gradwire::tools {

// The clock of one worker compared with that of another, estimated from calls that both have recorded. As in
// NTP: a call of `from` that takes t1 to t4 there, and t2 to t3 at `to`, says that the clock of `to` is ahead
// by ((t2 - t1) + (t3 - t4)) / 2, with an error of at most ((t4 - t1) - (t3 - t2)) / 2. The call with the
// smallest error counts.
struct ClockOffset {
  uint64_t from = 0;
  uint64_t to = 0;
  int64_t ahead_ns = 0;  // The wall clock of `to` is ahead of that of `from`.
  int64_t error_ns = 0;
  std::size_t calls = 0;  // The number of calls that both have recorded from beginning to end.
};

// A call in a chain, and how deep it is: a call of depth n + 1 is made by the handler of the one of depth n
// above it.
struct ChainLink {
  int depth = 0;
  const FlightCall* made = nullptr;    // nullptr if the caller has no file, or has not recorded the call.
  const FlightCall* served = nullptr;  // nullptr if the callee has no file, or has not seen the call.
};

// The files of several workers, taken together. The calls are in the files, which must outlive this object.
struct FlightJoin {
  std::map<uint64_t, std::string> names;  // By incarnation.
  // Calls that are open or have failed at their caller, and that the callee has not recorded, although it
  // kept the records of that time.
  std::vector<const FlightCall*> never_seen;
  // Calls that the callee has answered, and whose caller has no answer: it still waits, or has given up.
  struct Unanswered {
    const FlightCall* made = nullptr;
    const FlightCall* served = nullptr;
  };
  std::vector<Unanswered> answers_lost;
  // The calls that were open, as trees.
  std::vector<ChainLink> chains;
  std::vector<ClockOffset> clocks;
};

// Files of the same worker are merged: of a call the record that says more counts. Changes the files: their
// calls are sorted.
FlightJoin join_flight_files(std::vector<FlightFile>& files);

}  // namespace gradwire::tools
