#include <array>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/metrics/testing/strict_text.h"
#include "gradwire/rpc/metrics/peer_calls.h"
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
  for (int i = 0; i < 3; ++i) calls.with("ps").made("add", absl::StatusCode::kOk, 7'000);
  calls.with("ps").made("add", absl::StatusCode::kUnavailable, 7'000'000);
  calls.with("trainer").made("add", absl::StatusCode::kOk, 7'000);
  calls.with("ps").served("mul", absl::StatusCode::kOk, 100'000, 2'000'000);
  calls.with("ps").waited_for_window(absl::Milliseconds(3));
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
  calls.with("ps").served("", absl::StatusCode::kNotFound, 5'000, 0);
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
    PeerCalls& peer = calls.with(absl::StrCat("w", i));
    peer.served(absl::StrCat("f", i), absl::StatusCode::kOk, 1'000, 1'000);
    peer.made("g", static_cast<absl::StatusCode>(i), 1'000);
  }
  EXPECT_LT(registry.series(), 3'000u);
  const auto families = parsed(registry);
  EXPECT_EQ(families.at("gradwire_rpc_calls_served_total").sum({}), 1'000);
  const auto& made = families.at("gradwire_rpc_calls_made_total");
  EXPECT_EQ(made.sum({}), 1'000);
  // The codes are 0 to 16. All others count as UNKNOWN.
  EXPECT_EQ(made.sum({{"code", "OK"}}), 1);
  EXPECT_EQ(made.sum({{"code", "UNKNOWN"}}), 1 + 983);
  EXPECT_EQ(families.at("gradwire_rpc_queue_seconds").value({{"function", "other"}}, "_count"),
            1'000.0 - PeerCalls::kFunctions);
}

TEST(CallMetrics, FunctionsOfOnePeerAreBounded) {
  metrics::Registry registry;
  CallMetrics calls(registry);
  PeerCalls& peer = calls.with("ps");
  for (int i = 0; i < 1'000; ++i) {
    // The second round meets the names of the first one again.
    peer.served(absl::StrCat("f", i % 500), absl::StatusCode::kOk, 1'000, 1'000);
  }
  const auto families = parsed(registry);
  const auto& served = families.at("gradwire_rpc_calls_served_total");
  EXPECT_EQ(served.value({{"function", "f0"}}), 2);
  EXPECT_EQ(served.sum({{"function", "f499"}}), 0);
  EXPECT_EQ(served.value({{"function", "other"}}), 1'000.0 - 2 * PeerCalls::kFunctions);
  EXPECT_EQ(families.at("gradwire_rpc_service_seconds").value({{"function", "other"}}, "_count"),
            1'000.0 - 2 * PeerCalls::kFunctions);
}

TEST(PeerCallsHandle, NewHandleOfAWorkerContinuesItsSeries) {
  metrics::Registry registry;
  CallMetrics calls(registry);
  PeerCalls* first = nullptr;
  {
    PeerCallsHandle lost;
    first = &lost.in(calls, "ps");
    first->made("add", absl::StatusCode::kUnavailable, 7'000);
    EXPECT_EQ(&lost.in(calls, "ps"), first);
  }
  // The worker returns, so its peer and its links are new.
  PeerCallsHandle returned;
  EXPECT_EQ(&returned.in(calls, "ps"), first);
  returned.in(calls, "ps").made("add", absl::StatusCode::kUnavailable, 7'000);
  PeerCallsHandle other;
  EXPECT_NE(&other.in(calls, "trainer"), first);
  EXPECT_EQ(parsed(registry).at("gradwire_rpc_calls_made_total").value({{"peer", "ps"}}), 2);
}

TEST(PeerCallsHandle, WorkersBeyondTheBoundShareOne) {
  metrics::Registry registry;
  CallMetrics calls(registry);
  std::vector<std::unique_ptr<PeerCallsHandle>> handles;
  std::set<PeerCalls*> found;
  for (int i = 0; i < 1'000; ++i) {
    handles.push_back(std::make_unique<PeerCallsHandle>());
    found.insert(&handles.back()->in(calls, absl::StrCat("w", i)));
  }
  EXPECT_EQ(found.size(), CallMetrics::kPeers + 1);
}

TEST(PeerCallsHandle, ThreadsCountEachCallOnce) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 1'000;
  metrics::Registry registry;
  CallMetrics calls(registry);
  // All threads meet each worker, function and result first.
  std::array<PeerCallsHandle, 4> handles;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        PeerCalls& peer = handles[i % 4].in(calls, absl::StrCat("w", i % 4));
        peer.made(absl::StrCat("f", i % 7), static_cast<absl::StatusCode>(i % 3), 1'000);
        peer.served(absl::StrCat("f", i % 7), absl::StatusCode::kOk, 1'000, 1'000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto families = parsed(registry);
  for (const char* family : {"gradwire_rpc_calls_made_total", "gradwire_rpc_calls_served_total"}) {
    EXPECT_EQ(families.at(family).sum({}), kThreads * kCalls);
    EXPECT_EQ(families.at(family).sum({{"peer", "w0"}}), kThreads * kCalls / 4);
  }
  EXPECT_EQ(families.at("gradwire_rpc_call_seconds").sum({}, "_count"), kThreads * kCalls);
}

}  // namespace
}  // namespace gradwire::rpc
