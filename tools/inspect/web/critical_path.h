#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/tools/inspect/trace/flight_trace.h"
#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// The last backward pass in the flight records of a job, from its beginning at the root.
struct PassPath {
  // A period of a worker. Nanoseconds since the root began.
  struct Part {
    std::string worker;
    int64_t begin = 0;
    int64_t end = 0;
    // The result, as in TraceSpan.
    std::string result;
  };
  std::string root;
  uint64_t number = 0;
  int64_t total = 0;
  // The parts of all workers, in the order in which they began; at most kMostParts.
  std::vector<Part> parts;
  // The critical path: periods without gaps from the beginning of the pass to its end. In each one the named
  // worker has the part for which the others wait.
  std::vector<Part> path;
  // The largest error of the clocks of the workers. Negative if the clock of one of them is not known.
  double error = 0;

  static constexpr std::size_t kMostParts = 256;
};

// Finds the last pass that has ended at its root. Files that were written at different times may lack parts
// of the very last one. So it takes, of the last 16 passes, the newest one of those with the most parts.
//
// Then it computes the critical path. A part ends when everything that it caused on other workers has ended.
// So the path is followed backwards from the end of the root: before that moment, the part that ended last
// was the one for which the root waited. Its own path comes first, and what the root did before that part
// began comes before it.
//
// Returns std::nullopt if no pass has ended at its root. Pure. `clocks` are those of `workers`.
std::optional<PassPath> last_pass(const std::vector<WorkerTrace>& workers,
                                  const std::vector<WorkerClock>& clocks);

}  // namespace gradwire::inspect
