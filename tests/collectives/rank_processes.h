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

// The ranks of a world, each in a process of its own, which says what it has to say in lines.
class RankProcesses {
 public:
  struct Options {
    int size = 1;
    World world;
    absl::Duration timeout = absl::Minutes(2);
    // Called first in rank `rank`'s process.
    std::function<void(int rank)> enter;
  };
  // Before anything in this process has started a thread. An error of `run` is what the rank says last.
  RankProcesses(const Options& options, const std::function<void(ProcessGroup&, std::FILE*)>& run);
  // Processes that find one another by themselves.
  RankProcesses(int size, const std::function<void(int rank, std::FILE* says)>& run);
  // Kills who is left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  // The next line; empty when there is none any more.
  std::string line(int rank) const;
  pid_t process(int rank) const { return ranks_[rank].process; }

 private:
  struct Rank {
    pid_t process = -1;
    std::FILE* says = nullptr;
  };
  void start(int size, const std::function<void(int rank, std::FILE* says)>& run);

  // Of the store that a world of ours meets at.
  std::string path_;
  std::vector<Rank> ranks_;
};

}  // namespace gradwire::collectives
