#include "gradwire/rpc/device/stream_order.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace gradwire::rpc {
namespace {

// Each recorded fence gets the next number. Waits are noted.
int recorded = 0;
std::vector<int>& waited() {
  static std::vector<int> numbers;
  return numbers;
}

class FakeFence : public StreamFence {
 public:
  explicit FakeFence(int number) : number_(number) {}
  absl::Status wait() const override {
    waited().push_back(number_);
    return absl::OkStatus();
  }
  // The devices have reached all points up to 100.
  absl::StatusOr<bool> reached() const override { return number_ <= 100; }

 private:
  const int number_;
};

class StreamOrderTest : public ::testing::Test {
 protected:
  StreamOrderTest() {
    recorded = 0;
    waited().clear();
    install_stream_recorder([](const stream_fence_internal::Tensors& /*tensors*/) -> StreamFencePtr {
      return std::make_shared<FakeFence>(++recorded);
    });
  }
  ~StreamOrderTest() override { install_stream_recorder(nullptr); }

  // Returns the fences that work which begins now waits for.
  std::vector<int> begin(StreamOrder::Work& work) {
    waited().clear();
    order_.begin(work);
    return std::exchange(waited(), {});
  }
  StreamOrder order_;
};

using Numbers = std::vector<int>;

TEST_F(StreamOrderTest, WorkWaitsForWorkThatHasEnded) {
  StreamOrder::Work a, b, c;
  EXPECT_EQ(begin(a), Numbers());
  EXPECT_EQ(begin(b), Numbers());
  order_.end(a);  // 1
  EXPECT_EQ(begin(c), Numbers({1}));
  order_.end(b);  // 2, at the same time as c, so it stays
  order_.end(c);  // 3, which comes after 1
  StreamOrder::Work d;
  EXPECT_EQ(begin(d), Numbers({2, 3}));
  order_.end(d);  // 4, which comes after both
  StreamOrder::Work e;
  EXPECT_EQ(begin(e), Numbers({4}));
}

TEST_F(StreamOrderTest, WorkWaitsForThreads) {
  order_.add();  // 1
  order_.add();  // 2
  StreamOrder::Work work;
  EXPECT_EQ(begin(work), Numbers({1, 2}));
  waited().clear();
  order_.wait();
  EXPECT_EQ(waited(), Numbers({1, 2}));
  EXPECT_FALSE(StreamOrder().fence());
}

TEST_F(StreamOrderTest, ReachedFencesDoNotPileUp) {
  for (int i = 0; i < 99; ++i) order_.add();
  StreamOrder::Work work;
  EXPECT_LT(begin(work).size(), 20u);
}

}  // namespace
}  // namespace gradwire::rpc
