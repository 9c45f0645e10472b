#include "gradwire/collectives/cpu/world_p2p/rank_links.h"

#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

// An executor whose tasks the test runs, and without memory for the first ones.
class ShortExecutor : public Executor {
 public:
  using Executor::post_clean;
  bool post_clean(Task& task, TaskCost*) override {
    if (failures > 0) {
      --failures;
      throw std::bad_alloc();
    }
    tasks.push_back(std::move(task));
    return true;
  }

  int failures = 0;
  std::deque<Task> tasks;

 private:
  absl::Status begin_blocking(bool) override { return absl::OkStatus(); }
  void end_blocking() override {}
};

class LostRanks : public RankLinks::Observer {
 public:
  void on_out(int, const RankLinks::ConnectionPtr&) override {}
  void on_in(int, const RankLinks::ConnectionPtr&) override {}
  absl::Status on_frame(int, bool, const Frame&, transport::Message) override { return absl::OkStatus(); }
  void on_out_closed(int, const absl::Status&) override {}
  void on_lost(int rank, const absl::Status&) override { ranks.push_back(rank); }

  std::vector<int> ranks;
};

TEST(RankLinks, FindsARankThatIsRequestedAgainAfterAShortageOfMemory) {
  WorldP2p::Options options;
  options.rank = 0;
  options.size = 3;
  options.store = std::make_shared<store::HashStore>();
  // A rank without an address, so that it is lost as soon as it is found.
  for (int rank = 1; rank < 3; ++rank) options.store->set("mesh/rank/" + std::to_string(rank), "");
  LostRanks lost;
  ShortExecutor executor;
  TimerQueue timers;
  RankLinks links(options, lost, executor, timers);
  ASSERT_TRUE(links.start({}).ok());
  executor.failures = 1;
  EXPECT_THROW(links.request_connection(1), std::bad_alloc);
  links.request_connection(1);
  ASSERT_EQ(executor.tasks.size(), 1);
  // One task for both.
  links.request_connection(2);
  ASSERT_EQ(executor.tasks.size(), 1);
  executor.tasks.front()();
  EXPECT_EQ(lost.ranks, (std::vector<int>{1, 2}));
  links.shutdown(absl::CancelledError("the test has ended"));
}

}  // namespace
}  // namespace gradwire::collectives::cpu
