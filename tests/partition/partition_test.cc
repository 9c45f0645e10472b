// Three hosts and a network that separates them. Each host is a network namespace with one worker. The tests
// are skipped, with the reason, where namespaces cannot be created, which needs root. They print the time
// until a cut link is noticed: a little more than HeartbeatOptions::dead_after.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/chaos/worker_process.h"
#include "gradwire/tests/partition/hosts.h"

namespace chaos {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(40);
constexpr int kWorkers = 3;

// The result of a command.
struct Outcome {
  absl::Duration took;
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::string message;
};

class HostsWithWorkers {
 public:
  HostsWithWorkers(const std::string& run, absl::Duration suspect_after, absl::Duration dead_after)
      : store_(Hosts::own_address(), 0, {.world_size = std::nullopt, .is_master = true}), lines_(kWorkers) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      processes_.push_back(std::make_unique<WorkerProcess>(
          std::vector<std::string>{"/usr/bin/unshare", "-n", "tests/partition/host_worker",
                                   Hosts::own_address(), absl::StrCat(store_.port()), run,
                                   absl::StrCat(worker), absl::StrCat(kWorkers),
                                   absl::StrCat(absl::ToInt64Milliseconds(suspect_after)),
                                   absl::StrCat(absl::ToInt64Milliseconds(dead_after))},
          absl::StrCat(::testing::TempDir(), "/", run, worker, ".log")));
      const absl::Status joined = Hosts::join(worker + 1, processes_[worker]->pid());
      EXPECT_TRUE(joined.ok()) << joined;
    }
    for (int worker = 0; worker < kWorkers; ++worker) send(worker, "go");
    for (int worker = 0; worker < kWorkers; ++worker) EXPECT_TRUE(wait_for_line(worker, "ready"));
  }

  void send(int worker, const std::string& line) { processes_[worker]->send_line(line); }

  // Waits for a line that begins with `prefix`, removes it from the received lines and returns it. Keeps
  // other lines for later calls. If no such line arrives, the test fails and the result is nullopt.
  std::optional<std::string> wait_for_line(int worker, const std::string& prefix,
                                           absl::Duration limit = kTimeout) {
    const absl::Time end = absl::Now() + limit;
    std::vector<std::string>& lines = lines_[worker];
    while (true) {
      while (std::optional<std::string> line = processes_[worker]->read_line()) lines.push_back(*line);
      for (auto line = lines.begin(); line != lines.end(); ++line) {
        if (!absl::StartsWith(*line, prefix)) continue;
        std::string found = *line;
        lines.erase(line);
        return found;
      }
      if (absl::Now() > end || processes_[worker]->output_closed()) break;
      pollfd polled = {processes_[worker]->descriptor(), POLLIN, 0};
      (void)::poll(&polled, 1, 20);
    }
    ADD_FAILURE() << "worker" << worker << " did not write a line that begins with \"" << prefix
                  << "\"; its other lines: " << absl::StrJoin(lines, "; ");
    return std::nullopt;
  }

  Outcome outcome(int worker, const std::string& word) {
    const std::vector<std::string> fields =
        absl::StrSplit(wait_for_line(worker, word + " ").value_or(""), absl::MaxSplits(' ', 3));
    Outcome outcome;
    int64_t took = 0;
    int code = 0;
    if (fields.size() < 3 || !absl::SimpleAtoi(fields[1], &took) || !absl::SimpleAtoi(fields[2], &code))
      return outcome;
    outcome.took = absl::Milliseconds(took);
    outcome.code = static_cast<absl::StatusCode>(code);
    if (fields.size() > 3) outcome.message = fields[3];
    return outcome;
  }
  Outcome call(int from, int to, absl::Duration timeout = kTimeout) {
    send(from, absl::StrCat("call worker", to, " ", absl::ToInt64Milliseconds(timeout)));
    return outcome(from, "called");
  }
  bool has_received(int worker, const std::string& what) const {
    for (const std::string& line : lines_[worker]) {
      if (line == what) return true;
    }
    return false;
  }

  void end() {
    for (int worker = 0; worker < kWorkers; ++worker) send(worker, "end");
    for (int worker = 0; worker < kWorkers; ++worker) {
      EXPECT_TRUE(wait_for_line(worker, "ended "));
      EXPECT_EQ(processes_[worker]->wait(kTimeout), 0) << "worker" << worker;
    }
  }

 private:
  gradwire::store::TcpStore store_;
  std::vector<std::unique_ptr<WorkerProcess>> processes_;
  std::vector<std::vector<std::string>> lines_;
};

class Partition : public ::testing::Test {
 protected:
  void SetUp() override {
    static const absl::Status entered = Hosts::enter();
    GRADWIRE_NEEDS("network_namespaces", entered);
  }
};

TEST_F(Partition, ShorterThanDeadAfterLosesNothing) {
  HostsWithWorkers hosts("short", absl::Milliseconds(300), absl::Seconds(30));
  hosts.send(0, "make worker1");
  ASSERT_EQ(hosts.outcome(0, "made").code, absl::StatusCode::kOk);
  for (int from = 0; from < kWorkers; ++from) {
    for (int to = 0; to < kWorkers; ++to) EXPECT_EQ(hosts.call(from, to).code, absl::StatusCode::kOk);
  }
  hosts.send(0, "hold worker1 2000");
  hosts.send(1, "hold worker2 2000");
  ASSERT_TRUE(Hosts::cut(2).ok());
  // This call starts while the connection is silent.
  hosts.send(2, "hold worker1 100");
  EXPECT_TRUE(hosts.wait_for_line(0, "state worker1 suspect"));
  EXPECT_TRUE(hosts.wait_for_line(2, "state worker1 suspect"));
  EXPECT_EQ(hosts.call(0, 2).code, absl::StatusCode::kOk);
  ASSERT_TRUE(Hosts::heal(2).ok());
  EXPECT_TRUE(hosts.wait_for_line(0, "state worker1 alive"));
  EXPECT_TRUE(hosts.wait_for_line(2, "state worker1 alive"));
  for (int worker = 0; worker < 2; ++worker) {
    const Outcome held = hosts.outcome(worker, "held");
    EXPECT_EQ(held.code, absl::StatusCode::kOk) << held.message;
  }
  // The last call had a short timeout, so it may have exceeded its deadline.
  const Outcome sent = hosts.outcome(2, "held");
  EXPECT_TRUE(sent.code == absl::StatusCode::kOk || sent.code == absl::StatusCode::kDeadlineExceeded)
      << sent.message;
  for (int from = 0; from < kWorkers; ++from) {
    for (int to = 0; to < kWorkers; ++to) {
      const Outcome called = hosts.call(from, to);
      EXPECT_EQ(called.code, absl::StatusCode::kOk) << called.message;
    }
    for (int to = 0; to < kWorkers; ++to) {
      EXPECT_FALSE(hosts.has_received(from, absl::StrCat("state worker", to, " dead")));
    }
  }
  hosts.send(0, "fetch 10000");
  EXPECT_EQ(hosts.outcome(0, "fetched").code, absl::StatusCode::kOk);
  hosts.end();
}

TEST_F(Partition, LongerThanDeadAfterIsDeathWhichHealingDoesNotUndo) {
  constexpr absl::Duration kDeadAfter = absl::Seconds(5);
  HostsWithWorkers hosts("long", absl::Milliseconds(500), kDeadAfter);
  hosts.send(0, "make worker1");
  ASSERT_EQ(hosts.outcome(0, "made").code, absl::StatusCode::kOk);
  hosts.send(0, "hold worker1 60000");
  hosts.send(2, "hold worker1 60000");
  EXPECT_EQ(hosts.call(0, 1).code, absl::StatusCode::kOk);
  EXPECT_EQ(hosts.call(2, 1).code, absl::StatusCode::kOk);
  const absl::Time cut = absl::Now();
  ASSERT_TRUE(Hosts::cut(2).ok());
  for (int worker : {0, 2}) {
    const Outcome held = hosts.outcome(worker, "held");
    const absl::Duration noticed = absl::Now() - cut;
    EXPECT_EQ(held.code, absl::StatusCode::kUnavailable) << held.message;
    EXPECT_TRUE(absl::StrContains(held.message, "\"worker1\"")) << held.message;
    std::cout << "worker" << worker << " noticed the cut link after " << noticed << " (dead_after "
              << kDeadAfter << ")\n";
    EXPECT_GT(noticed, kDeadAfter / 2);
    // The timeout of the call is much longer.
    EXPECT_LT(noticed, kDeadAfter + absl::Seconds(15));
    EXPECT_TRUE(hosts.wait_for_line(worker, "state worker1 dead"));
  }
  hosts.send(0, "fetch 5000");
  EXPECT_EQ(hosts.outcome(0, "fetched").code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(hosts.call(0, 2).code, absl::StatusCode::kOk);

  ASSERT_TRUE(Hosts::heal(2).ok());
  // worker1 still runs. It learns that the others have declared it dead.
  const Outcome first = hosts.call(1, 0);
  EXPECT_EQ(first.code, absl::StatusCode::kAborted) << first.message;
  const Outcome second = hosts.call(1, 2);
  EXPECT_EQ(second.code, absl::StatusCode::kAborted) << second.message;
  const Outcome to_dead = hosts.call(0, 1);
  EXPECT_EQ(to_dead.code, absl::StatusCode::kUnavailable) << to_dead.message;
  EXPECT_TRUE(absl::StrContains(to_dead.message, "\"worker1\"")) << to_dead.message;
  EXPECT_EQ(hosts.call(2, 0).code, absl::StatusCode::kOk);
  hosts.end();
}

}  // namespace
}  // namespace chaos
