#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/tests/collectives/worlds.h"

namespace gradwire::collectives {

// The ranks of a world, each in its own process. A process reports to the test in lines of text, which it
// writes to the FILE that `run` gets.
class RankProcesses {
 public:
  struct Options {
    int size = 1;
    World world;
    absl::Duration timeout = absl::Minutes(2);
    // Called in the process of rank `rank` before it joins the world; may be empty.
    std::function<void(int rank)> enter;
  };
  // Starts the processes; each joins the world and calls `run`. The last line of a rank is the error that
  // `run` throws. REQUIRES: this process has not started a thread, because the processes are forks of it.
  RankProcesses(const Options& options, const std::function<void(ProcessGroup&, std::FILE*)>& run);
  // As above, but the processes do not join a world: `run` does that itself.
  RankProcesses(int size, const std::function<void(int rank, std::FILE* out)>& run);
  // Kills the processes that are still running.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  // Waits for the next line of a rank; empty if the process has ended without another line.
  std::string line(int rank) const;
  pid_t process(int rank) const { return ranks_[rank].process; }

 private:
  struct Rank {
    pid_t process = -1;
    // The reading end of the pipe.
    std::FILE* lines = nullptr;
  };
  void start(int size, const std::function<void(int rank, std::FILE* out)>& run);

  // The file of the store that the world uses; empty if the processes do not join a world.
  std::string path_;
  std::vector<Rank> ranks_;
};

}  // namespace gradwire::collectives
