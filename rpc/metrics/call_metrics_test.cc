#include "gradwire/rpc/metrics/call_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/metrics/testing/strict_text.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

metrics::testing::TextFamilies parsed(const metrics::Registry& registry) {
  metrics::Samples samples;
  registry.collect(samples);
  absl::StatusOr<metrics::testing::TextFamilies> families = metrics::testing::parse_strictly(samples.text());
  EXPECT_TRUE(families.ok()) << families.status();
  return *families;
}

TEST(CallMetrics, CountsByFunctionPeerAndCode) {
  metrics::Registry registry;
  CallMetrics calls(registry);
  for (int i = 0; i < 3; ++i) calls.made("add", "ps", absl::StatusCode::kOk, absl::Microseconds(7));
  calls.made("add", "ps", absl::StatusCode::kUnavailable, absl::Milliseconds(7));
  calls.made("add", "trainer", absl::StatusCode::kOk, absl::Microseconds(7));
  calls.served("mul", "ps", absl::StatusCode::kOk, absl::Microseconds(100), absl::Milliseconds(2));
  calls.waited_for_window("ps", absl::Milliseconds(3));
  const auto families = parsed(registry);
  const auto& made = families.at("gradwire_rpc_calls_made_total");
  EXPECT_EQ(made.value({{"function", "add"}, {"peer", "ps"}, {"code", "OK"}}), 3);
  EXPECT_EQ(made.value({{"function", "add"}, {"peer", "ps"}, {"code", "UNAVAILABLE"}}), 1);
  EXPECT_EQ(made.value({{"function", "add"}, {"peer", "trainer"}, {"code", "OK"}}), 1);
  EXPECT_EQ(families.at("gradwire_rpc_call_seconds").value({{"function", "add"}}, "_count"), 5);
  EXPECT_EQ(families.at("gradwire_rpc_calls_served_total").value({{"function", "mul"}, {"peer", "ps"}}), 1);
  EXPECT_NEAR(families.at("gradwire_rpc_queue_seconds").value({}, "_sum"), 100e-6, 1e-12);
  EXPECT_NEAR(families.at("gradwire_rpc_service_seconds").value({}, "_sum"), 2e-3, 1e-12);
  EXPECT_NEAR(families.at("gradwire_rpc_flow_wait_seconds").value({{"peer", "ps"}}, "_sum"), 3e-3, 1e-12);
}

TEST(CallMetrics, CallWithoutAHandlerHasNoServiceTime) {
  metrics::Registry registry;
  CallMetrics calls(registry);
  calls.served("", "ps", absl::StatusCode::kNotFound, absl::Microseconds(5), absl::ZeroDuration());
  const auto families = parsed(registry);
  EXPECT_EQ(
      families.at("gradwire_rpc_calls_served_total").value({{"function", "unknown"}, {"code", "NOT_FOUND"}}),
      1);
  EXPECT_EQ(families.at("gradwire_rpc_service_seconds").value({{"function", "unknown"}}, "_count"), 0);
}

TEST(CallMetrics, NamesOfOtherProcessesAreBounded) {
  metrics::Registry registry;
  CallMetrics calls(registry);
  for (int i = 0; i < 1'000; ++i) {
    calls.served(absl::StrCat("f", i), absl::StrCat("w", i), absl::StatusCode::kOk, absl::Microseconds(1),
                 absl::Microseconds(1));
    calls.made("g", absl::StrCat("w", i), static_cast<absl::StatusCode>(i), absl::Microseconds(1));
  }
  EXPECT_LT(registry.series(), 3'000u);
  const auto families = parsed(registry);
  EXPECT_EQ(families.at("gradwire_rpc_calls_served_total").sum({}), 1'000);
  EXPECT_EQ(families.at("gradwire_rpc_calls_made_total").sum({}), 1'000);
  EXPECT_EQ(families.at("gradwire_rpc_queue_seconds").value({{"function", "other"}}, "_count"),
            1'000.0 - CallMetrics::kFunctions);
}

}  // namespace
}  // namespace gradwire::rpc
