// Correct uses of prebuilt libraries that ThreadSanitizer reports as races without the list of suppressions.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace gradwire {
namespace {

constexpr absl::string_view kUrl = "gradwire.test/reason";

TEST(TsanSuppressions, StatusWithAPayloadMayEndInAnotherThreadThanItsReaders) {
  absl::Status status = absl::UnavailableError("the server has ended, and nobody answers at its address");
  // Too long for the Cord to keep it inline.
  status.SetPayload(kUrl, absl::Cord("a connection that was refused, and not one that was lost on the way"));
  // Relaxed, so that only the count of the status itself orders the two threads.
  std::atomic<bool> read{false};
  std::thread reader([&read, copy = status]() mutable {
    EXPECT_TRUE(copy.GetPayload(kUrl).has_value());
    copy = absl::OkStatus();
    read.store(true, std::memory_order_relaxed);
  });
  while (!read.load(std::memory_order_relaxed)) std::this_thread::yield();
  status = absl::OkStatus();
  reader.join();
}

}  // namespace
}  // namespace gradwire
