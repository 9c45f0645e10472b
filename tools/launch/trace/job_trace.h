#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/tools/launch/options/layout.h"

namespace gradwire::tools {

// The trace of the workers of this node (--trace). Each worker has a folder of its own, and writes its flight
// records there when it ends, without a line of its program (base/flight/trace_settings.h). At the end of the
// job the launcher makes one trace of them. Without a directory nothing happens.
//
// Not thread-safe.
class JobTrace {
 public:
  struct Options {
    // Empty: there is no trace.
    std::string directory;
    // The least number of records of an agent; 0: the default of TraceSettings.
    int records = 0;
  };
  // Variables of the environment, each with its value.
  using Variables = std::vector<std::pair<std::string, std::string>>;

  explicit JobTrace(Options options) : options_(std::move(options)) {}

  bool enabled() const { return !options_.directory.empty(); }
  // Makes the directory, with the mode 0700 if it is new, and its path absolute. Call once, before
  // add_worker(). Unavailable if it cannot be made.
  absl::Status prepare();
  // Makes the folder DIR/round_ROUND/rank_RANK of a worker, without flight records of an earlier job, and
  // adds the variables that name it for the worker. Unavailable if that fails.
  absl::Status add_worker(int64_t round, const WorkerPlace& place, Variables& variables);
  // Call after all workers have ended. Writes DIR/trace.json, or DIR/trace-nodeN.json in a job of several
  // nodes, of all workers of this node that were added. Returns lines for the user: what was written, or why
  // not, and which workers left no records. Empty without workers.
  std::vector<std::string> write() const;

 private:
  struct Added {
    int64_t round = 0;
    int rank = 0;
    std::string folder;
  };

  // Set by prepare().
  Options options_;
  std::vector<Added> workers_;
  // The place of the last worker.
  int node_ = 0;
  int nodes_ = 1;
};

}  // namespace gradwire::tools
