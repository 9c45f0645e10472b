#include "gradwire/store/measured/measured_store.h"

#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/metrics/testing/strict_text.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/testing/store_conformance.h"

namespace gradwire::store {
namespace {

class MeasuredFixture : public StoreFixture {
 public:
  std::shared_ptr<Store> connect() override {
    return std::make_shared<MeasuredStore>(store_, std::make_shared<metrics::Registry>(),
                                           std::make_shared<StoreTimes>());
  }

 private:
  const std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
};
std::unique_ptr<StoreFixture> make() { return std::make_unique<MeasuredFixture>(); }

INSTANTIATE_TEST_SUITE_P(Kinds, StoreConformance, testing::Values(StoreKind{"MeasuredOverHash", make}),
                         [](const testing::TestParamInfo<StoreKind>& info) { return info.param.name; });

TEST(MeasuredStore, CountsByOperationAndCode) {
  const auto registry = std::make_shared<metrics::Registry>();
  const auto times = std::make_shared<StoreTimes>();
  MeasuredStore store(std::make_shared<HashStore>(), registry, times);
  store.set("a", "1");
  store.multi_set({"b", "c"}, {"2", "3"});
  EXPECT_EQ(store.get("a"), "1");
  EXPECT_FALSE(store.try_get("missing", absl::ZeroDuration()).ok());
  EXPECT_EQ(store.watch("a", ""), "1");
  store.clone()->add("n", 1);
  metrics::Samples samples;
  registry->collect(samples);
  const auto families = metrics::testing::parse_strictly(samples.text());
  ASSERT_TRUE(families.ok()) << families.status();
  const auto& calls = families->at("gradwire_store_calls_total");
  EXPECT_EQ(calls.value({{"operation", "set"}, {"code", "OK"}}), 2);
  EXPECT_EQ(calls.value({{"operation", "get"}, {"code", "OK"}}), 1);
  EXPECT_EQ(calls.value({{"operation", "get"}, {"code", "DEADLINE_EXCEEDED"}}), 1);
  EXPECT_EQ(calls.value({{"operation", "watch"}, {"code", "OK"}}), 1);
  EXPECT_EQ(calls.value({{"operation", "add"}, {"code", "OK"}}), 1);
  EXPECT_EQ(families->at("gradwire_store_call_seconds").value({{"operation", "get"}}, "_count"), 2);
  // set, multi_set and add; the others wait for keys.
  EXPECT_EQ(times->view(absl::UnixEpoch()).calls, 3u);
  EXPECT_EQ(times->view(absl::UnixEpoch()).open_operation, "");
}

}  // namespace
}  // namespace gradwire::store
