#include "gradwire/collectives/testing/group.h"

#include <gtest/gtest.h>

#include <exception>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives::testing {

std::vector<absl::Status> run_threads(int count, const std::function<void(int index)>& body) {
  std::vector<absl::Status> results(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&body, &result = results[static_cast<std::size_t>(i)], i] {
      try {
        body(i);
      } catch (...) {
        result = status_from_exception(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

Ranks::Ranks(int world_size, ProcessGroupOptions options)
    : Ranks(std::vector<ProcessGroupOptions>(static_cast<std::size_t>(world_size), options)) {}

Ranks::Ranks(std::vector<ProcessGroupOptions> options) : groups_(options.size()) {
  const auto store = std::make_shared<store::HashStore>();
  for (std::size_t rank = 0; rank < options.size(); ++rank) {
    if (options[rank].store == nullptr) options[rank].store = store;
    if (options[rank].rank < 0) options[rank].rank = static_cast<int>(rank);
    if (options[rank].world_size < 0) options[rank].world_size = static_cast<int>(options.size());
  }
  const std::vector<absl::Status> results = run_threads(size(), [&](int rank) {
    groups_[static_cast<std::size_t>(rank)] = ProcessGroup::create(options[static_cast<std::size_t>(rank)]);
  });
  for (const absl::Status& result : results) throw_if_error(result);
}

Ranks::~Ranks() {
  for (const Group& group : groups_) {
    if (group != nullptr) group->destroy();
  }
}

std::vector<absl::Status> Ranks::results(const std::function<void(const Group& group)>& body) const {
  return run_threads(size(), [&](int rank) { body(groups_[static_cast<std::size_t>(rank)]); });
}

void Ranks::run(const std::function<void(const Group& group)>& body) const {
  int rank = 0;
  for (const absl::Status& result : results(body)) {
    EXPECT_TRUE(result.ok()) << "rank " << rank << ": " << result;
    ++rank;
  }
}

}  // namespace gradwire::collectives::testing
