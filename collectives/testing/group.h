#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives::testing {

using Group = std::shared_ptr<ProcessGroup>;

// The ranks of one world in this process. They share one HashStore and use the registered backend.
class Ranks {
 public:
  explicit Ranks(int world_size, ProcessGroupOptions options = {});
  // Each rank has its own options; store, rank and world size are filled in if they are not set.
  explicit Ranks(std::vector<ProcessGroupOptions> options);
  // Destroys all ranks' groups.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const Group& operator[](std::size_t rank) const { return groups_.at(rank); }
  int size() const { return static_cast<int>(groups_.size()); }

  // Runs `body` for every rank, each in its own thread. An exception fails the test.
  void run(const std::function<void(const Group& group)>& body) const;
  // As run(), but returns for each rank the Status of its exception, or OK.
  std::vector<absl::Status> results(const std::function<void(const Group& group)>& body) const;

 private:
  std::vector<Group> groups_;
};

// Runs `body` on `count` threads. Returns for each thread the Status of its exception, or OK.
std::vector<absl::Status> run_threads(int count, const std::function<void(int index)>& body);

}  // namespace gradwire::collectives::testing
