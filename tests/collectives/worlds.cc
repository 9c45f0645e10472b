#include "gradwire/tests/collectives/worlds.h"

#include <exception>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {

void in_world(int size, const World& world, const std::function<void(ProcessGroup&)>& member) {
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      SCOPED_TRACE(absl::StrCat(world.name, ", rank ", rank, " of ", size));
      try {
        const std::shared_ptr<ProcessGroup> group = ProcessGroup::create({.backend = world.backend,
                                                                          .timeout = absl::Seconds(120),
                                                                          .world_size = size,
                                                                          .rank = rank,
                                                                          .store = store,
                                                                          .options = world.options});
        member(*group);
        group->barrier();
        group->destroy();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gradwire::collectives
