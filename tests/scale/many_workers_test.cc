// Many workers on one machine. Each is a process that may open 1,024 descriptors, and calls all others.
//
// By default 64 workers, under a sanitizer 12. To change it:
//   bazel test //tests/scale:many_workers_test --test_arg=--workers=128 --test_output=all
// --transport=NAME uses only this transport, instead of all. The test prints the time of the first calls, and
// the descriptors and resident memory per peer: the difference between before and after the calls.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/chaos/sanitized.h"
#include "gradwire/tests/chaos/worker_process.h"

namespace scale {
namespace {

using chaos::WorkerProcess;

int workers = chaos::kSanitized ? 12 : 64;
// The number of descriptors that a sanitizer may open at any time.
constexpr int kSymbolizer = chaos::kMayHaveSymbolizer ? 2 : 0;
std::string only_transport = "all";

class ManyWorkers {
 public:
  explicit ManyWorkers(int count) : store_("127.0.0.1", 0, {.world_size = std::nullopt, .is_master = true}) {
    for (int rank = 0; rank < count; ++rank) {
      processes_.push_back(std::make_unique<WorkerProcess>(
          std::vector<std::string>{"tests/scale/scale_worker", absl::StrCat(store_.port()), "many",
                                   absl::StrCat(rank), absl::StrCat(count), "1024", only_transport},
          absl::StrCat(::testing::TempDir(), "/worker", rank, ".log")));
    }
  }

  void send_to_all(const std::string& line) {
    for (const auto& process : processes_) process->send_line(line);
  }

  // Waits for the next line of every worker, which must begin with `word`, and returns the numbers that
  // follow it. If a worker fails, the test fails and the result is empty.
  std::vector<std::vector<int64_t>> gather(const std::string& word, absl::Duration limit) {
    const absl::Time end = absl::Now() + limit;
    std::vector<std::vector<int64_t>> all;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      std::optional<std::string> line;
      while (!(line = processes_[rank]->read_line()) && !processes_[rank]->output_closed() &&
             absl::Now() < end) {
        pollfd polled = {processes_[rank]->descriptor(), POLLIN, 0};
        (void)::poll(&polled, 1, 100);
      }
      std::vector<std::string> fields = absl::StrSplit(line.value_or("(nothing)"), ' ');
      if (fields[0] != word) {
        ADD_FAILURE() << "unexpected line of worker" << rank << ": got \"" << line.value_or("(nothing)")
                      << "\", expected \"" << word << "\"";
        return {};
      }
      std::vector<int64_t>& numbers = all.emplace_back();
      for (std::size_t i = 1; i < fields.size(); ++i)
        (void)absl::SimpleAtoi(fields[i], &numbers.emplace_back());
    }
    return all;
  }

  void reap() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      EXPECT_EQ(processes_[rank]->wait(absl::Seconds(60)), 0) << "worker" << rank;
    }
  }

 private:
  gradwire::store::TcpStore store_;
  std::vector<std::unique_ptr<WorkerProcess>> processes_;
};

TEST(ManyWorkers, CallOneAnotherWithin1024Descriptors) {
  const absl::Time start = absl::Now();
  ManyWorkers group(workers);
  const auto ready = group.gather("ready", absl::Seconds(120));
  ASSERT_FALSE(ready.empty());
  const absl::Time all_ready = absl::Now();
  group.send_to_all("call");
  const auto called = group.gather("called", absl::Seconds(120));
  ASSERT_FALSE(called.empty());
  const absl::Time all_called = absl::Now();
  group.send_to_all("count");
  const auto holds = group.gather("holds", absl::Seconds(120));
  ASSERT_FALSE(holds.empty());
  const absl::Time all_counted = absl::Now();
  group.send_to_all("end");
  const auto ended = group.gather("ended", absl::Seconds(120));
  ASSERT_FALSE(ended.empty());
  const absl::Time all_ended = absl::Now();
  group.reap();

  int64_t slowest_ms = 0;
  double descriptors = 0, most_descriptors = 0, most_kb = 0;
  const double peers = std::max(1, workers - 1);
  for (int rank = 0; rank < workers; ++rank) {
    slowest_ms = std::max(slowest_ms, called[rank][0]);
    most_descriptors =
        std::max(most_descriptors, static_cast<double>(holds[rank][0] - ready[rank][0]) / peers);
    descriptors += static_cast<double>(holds[rank][0] - ready[rank][0]) / peers / workers;
    most_kb = std::max(most_kb, static_cast<double>(holds[rank][1] - ready[rank][1]) / peers);
    EXPECT_LE(ended[rank][1], kSymbolizer) << "worker" << rank << " has open descriptors after its shutdown";
    EXPECT_EQ(ended[rank][2], 0) << "worker" << rank << " has memfds after its shutdown";
    EXPECT_EQ(ended[rank][3], 0) << "worker" << rank << " has threads after its shutdown";
  }
  std::cout << workers << " workers: ready in " << all_ready - start << "; first calls, all to all, in "
            << all_called - all_ready << " (the slowest worker: " << slowest_ms << " ms); ended in "
            << all_ended - all_counted << "; per peer " << descriptors << " descriptors on average, at most "
            << most_descriptors << ", and at most " << most_kb << " KiB.\n";
  EXPECT_LE(most_descriptors, 2 + kSymbolizer / peers);
  if (!chaos::kSanitized) EXPECT_LE(most_kb, 1024);
}

}  // namespace
}  // namespace scale

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--workers=")) {
      if (!absl::SimpleAtoi(argument, &scale::workers)) return 2;
    } else if (absl::ConsumePrefix(&argument, "--transport=")) {
      scale::only_transport = std::string(argument);
    } else {
      std::cerr << "unknown option: got " << argv[i] << ", expected --workers=N or --transport=NAME\n";
      return 2;
    }
  }
  ::signal(SIGPIPE, SIG_IGN);
  return RUN_ALL_TESTS();
}
