#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives::testing {

using Group = std::shared_ptr<ProcessGroup>;

// The ranks of one world as threads of this process, over one HashStore and whichever backend is registered.
class Ranks {
 public:
  explicit Ranks(int world_size, ProcessGroupOptions options = {});
  // Another set of options for each rank; those left out are filled in.
  explicit Ranks(std::vector<ProcessGroupOptions> options);
  // All leave.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const Group& operator[](std::size_t rank) const { return groups_.at(rank); }
  int size() const { return static_cast<int>(groups_.size()); }

  // Runs `body` for every rank in a thread of its own. An exception fails the test.
  void run(const std::function<void(const Group& group)>& body) const;
  // The same, and what each rank ended with.
  std::vector<absl::Status> results(const std::function<void(const Group& group)>& body) const;

 private:
  std::vector<Group> groups_;
};

// What each of `count` threads threw.
std::vector<absl::Status> run_threads(int count, const std::function<void(int index)>& body);

}  // namespace gradwire::collectives::testing
