#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradwire/tools/inspect/clock/clock_fit.h"
#include "gradwire/tools/inspect/dump/flight_file.h"

namespace gradwire::tools {

// The wall clock of one worker compared with that of another, by the calls that both have recorded
// (tools/inspect/clock).
struct ClockOffset {
  uint64_t from = 0;
  uint64_t to = 0;
  // The map from the clock of `from` to that of `to`.
  inspect::ClockFit fit;
  std::size_t calls = 0;  // The number of calls that both have recorded from beginning to end.
  // When the last file of `from` was written: the wall clock of `to` was ahead of that of `from` by this
  // much.
  int64_t ahead_ns = 0;
  int64_t error_ns = 0;
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
