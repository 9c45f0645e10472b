#include "gradwire/tools/launch/job/round_keys.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/interface/forwarding_store.h"
#include "gtest/gtest.h"

namespace gradwire::tools {
namespace {

// A store whose calls take one second each. It uses full(), which each call asks for its key's name.
class SlowStore : public store::ForwardingStore {
 public:
  SlowStore(std::shared_ptr<store::Store> store, ManualClock& clock)
      : ForwardingStore(std::move(store)), clock_(clock) {}

 private:
  std::string full(absl::string_view key) const override {
    if (!key.empty()) clock_.advance(absl::Seconds(1));
    return std::string(key);
  }

  ManualClock& clock_;
};

TEST(RoundKeys, OnlyThoseOfPyTorchsGroupsAndRpcAreRemoved) {
  ManualClock clock;
  store::HashStore keys;
  for (const char* key : {"default_pg/0", "rpc_prefix_1/a", "mine", "default"}) keys.set(key, "");
  EXPECT_TRUE(remove_round_keys(keys, clock, clock.now() + absl::Seconds(1)).ok());
  EXPECT_THAT(keys.list_keys(), ::testing::ElementsAre("default", "mine"));
}

TEST(RoundKeys, AllCallsShareOneDeadline) {
  ManualClock clock;
  auto keys = std::make_shared<store::HashStore>();
  for (int i = 0; i < 100; ++i) keys->set(absl::StrCat("default_pg/", i), "");
  SlowStore slow(keys, clock);
  const absl::Time start = clock.now();
  const absl::Status status = remove_round_keys(slow, clock, start + absl::Seconds(10));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LE(clock.now(), start + absl::Seconds(11));
}

}  // namespace
}  // namespace gradwire::tools
