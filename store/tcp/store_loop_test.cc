#include "gradwire/store/tcp/store_loop.h"

#include <sys/eventfd.h>

#include <memory>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using transport::EventLoop;

class Owner : public transport::EventHandler {
 public:
  explicit Owner(std::shared_ptr<EventLoop> loop) : loop_(std::move(loop)) {}
  void on_events_in_loop(uint32_t) override {}
  void failed_in_loop(const absl::Status&) override {}

 private:
  const std::shared_ptr<EventLoop> loop_;
};

// As of a connection that its peer closes while this end does: its last task may come too late for the
// thread.
TEST(StoreLoop, HandlersAndTasksThatAreLeftDoNotKeepTheLoop) {
  auto store_loop = value_or_throw(StoreLoop::create("test"));
  const std::weak_ptr<EventLoop> loop = store_loop->loop();
  const Descriptor descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  store_loop->loop()->post([kept = store_loop->loop(), &descriptor] {
    EXPECT_TRUE(kept->add_in_loop(descriptor.get(), std::make_shared<Owner>(kept)).ok());
    kept->schedule_in_loop(absl::Now() + absl::Hours(1), [kept] {});
  });
  store_loop = nullptr;
  EXPECT_TRUE(loop.expired());
}

}  // namespace
}  // namespace gradwire::store
