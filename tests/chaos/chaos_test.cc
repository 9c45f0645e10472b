// Random programs over four processes that are killed, paused, and lose messages.
//
// The seed of a run determines its programs and faults (plan.h, program.h). By default the test executes 60
// runs, under a sanitizer 20. To execute more runs, or to repeat one:
//
//   bazel test //tests/chaos:chaos_test --test_arg=--runs=1000 --test_timeout=3600
//   bazel run //tests/chaos:chaos_test -- --seed=17
//
// Options:
//   --runs=N          number of runs; the environment variable GRADWIRE_CHAOS_RUNS changes the default
//   --first=N         seed of the first run (default 1); the next runs have the next seeds
//   --jobs=N          number of runs at the same time (default 2)
//   --seed=N          one run with this seed, and its plan
//   --same            give all runs the same seed
//   --verbose         print every plan
//   --lose-services   lose messages of services, too (faults.h)
//
// The timing of the messages differs between runs of the same seed. To find a failure that depends on it, use
// --seed=N --runs=50 --same, which repeats the seed fifty times.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/chaos/census.h"
#include "gradwire/tests/chaos/chaos_run.h"
#include "gradwire/tests/chaos/sanitized.h"
#include "gradwire/tests/chaos/stall_watch.h"

namespace chaos {
namespace {

struct Flags {
  uint64_t first = 1;
  int runs = kSanitized ? 20 : 60;
  int jobs = 2;
  bool same = false;
  bool verbose = false;
  bool lose_services = false;
};
Flags flags;

// Returns the last lines of a file.
std::string tail(const std::filesystem::path& path, std::size_t lines) {
  std::ifstream file(path);
  std::vector<std::string> all;
  for (std::string line; std::getline(file, line);) all.push_back(line);
  std::ostringstream text;
  for (std::size_t i = all.size() - std::min(all.size(), lines); i < all.size(); ++i)
    text << "    " << all[i] << "\n";
  return text.str();
}

class Chaos {
 public:
  Chaos() : store_("127.0.0.1", 0, {.world_size = std::nullopt, .is_master = true}) {
    const char* temporary = std::getenv("TEST_TMPDIR");
    std::string pattern = absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/chaos-XXXXXX");
    directory_ = ::mkdtemp(pattern.data());
  }
  ~Chaos() {
    if (failures_ == 0) std::filesystem::remove_all(directory_);
  }

  void run() {
    const int jobs = flags.jobs;
    std::vector<std::thread> threads;
    for (int job = 0; job < jobs; ++job) {
      threads.emplace_back([&] {
        for (int i = next_.fetch_add(1); i < flags.runs; i = next_.fetch_add(1)) run_one(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (stalled_ > absl::ZeroDuration()) {
      std::cout << "The machine stood still for up to " << stalled_
                << " during a run; the times below do not include that.\n";
    }
    check_figures();
    std::cout << flags.runs << " runs, " << failures_ << " failed; " << calls_ << " calls, " << failed_calls_
              << " of them failed, " << repeated_ << " repeated, " << undelayed_calls_
              << " in runs without delays; " << killed_ << " workers killed, " << suspected_
              << " suspicions, " << store_faults_ << " stores paused or killed, " << outcasts_
              << " workers declared dead after a pause. Longest times: "
              << std::max(overrun_, absl::ZeroDuration()) << " from a call's deadline to its end, "
              << emptying_ << " until tables were empty, " << shutdown_ << " for a shutdown, " << duration_
              << " for a run.\n";
  }

 private:
  // Checks that the runs had enough calls and faults. The plans of 20 seeds have several times these figures.
  void check_figures() {
    if (flags.runs < 20 || flags.same) return;
    gradwire::MutexLock lock(mutex_);
    EXPECT_GE(calls_, 40 * flags.runs);
    EXPECT_GE(undelayed_calls_, flags.runs);
    EXPECT_GE(killed_, flags.runs / 4);
    EXPECT_GE(suspected_, flags.runs / 4);
    EXPECT_GE(repeated_, flags.runs / 20);
    EXPECT_GE(store_faults_, flags.runs / 10);
    EXPECT_GE(outcasts_, flags.runs / 100);
  }

  void run_one(int number) {
    const uint64_t seed = flags.first + static_cast<uint64_t>(flags.same ? 0 : number);
    const Plan plan = make_plan(seed);
    const std::filesystem::path directory = directory_ / absl::StrCat("run-", number, "-seed-", seed);
    std::filesystem::create_directory(directory);
    const RunReport report = ChaosRun(plan, {.worker_program = "tests/chaos/chaos_worker",
                                             .store_program = "tests/rpc/store_process",
                                             .store_port = store_.port(),
                                             .directory = directory,
                                             .lose_services = flags.lose_services,
                                             .stalls = &stalls_})
                                 .run();
    gradwire::MutexLock lock(mutex_);
    calls_ += report.calls;
    failed_calls_ += report.failed_calls;
    killed_ += report.killed;
    repeated_ += report.repeated;
    suspected_ += report.suspected;
    store_faults_ += report.store_faults;
    outcasts_ += report.outcasts;
    undelayed_calls_ += report.undelayed_calls;
    overrun_ = std::max(overrun_, report.overrun);
    emptying_ = std::max(emptying_, report.emptying);
    shutdown_ = std::max(shutdown_, report.shutdown);
    duration_ = std::max(duration_, report.duration);
    stalled_ = std::max(stalled_, report.stalled);
    if (flags.verbose)
      std::cout << "seed " << seed << ": " << plan.to_string() << " (" << report.duration << ")\n";
    if (report.failures.empty()) {
      std::filesystem::remove_all(directory);
      return;
    }
    ++failures_;
    std::ostringstream text;
    text << "seed " << seed << " failed (" << plan.to_string() << ")\n"
         << "  repeat it with: bazel run //tests/chaos:chaos_test -- --seed=" << seed << "\n";
    for (const std::string& failure : report.failures) text << "  " << failure << "\n";
    // Print the logs of the first failures only: many failures are often alike.
    if (failures_ <= 5) {
      for (int worker = 0; worker < Plan::kWorkers; ++worker) {
        text << "  " << worker_name(worker) << " wrote:\n"
             << tail(directory / (worker_name(worker) + ".log"), 40);
        text << "  its last calls:\n" << tail(directory / (worker_name(worker) + ".calls"), 12);
      }
      text << "  complete logs: " << directory << "\n";
    }
    ADD_FAILURE() << text.str();
  }

  gradwire::store::TcpStore store_;
  StallWatch stalls_;
  std::filesystem::path directory_;
  std::atomic<int> next_{0};

  gradwire::Mutex mutex_;
  int failures_ = 0;
  int64_t calls_ = 0;
  int64_t failed_calls_ = 0;
  int killed_ = 0;
  int64_t repeated_ = 0;
  int64_t suspected_ = 0;
  int store_faults_ = 0;
  int outcasts_ = 0;
  int64_t undelayed_calls_ = 0;
  absl::Duration overrun_ = -absl::InfiniteDuration();
  absl::Duration emptying_;
  absl::Duration shutdown_;
  absl::Duration duration_;
  absl::Duration stalled_;
};

// Whether this process has children, zombies included.
bool has_children() {
  siginfo_t info = {};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

TEST(Chaos, SurvivorsEndInTimeAndLeakNothing) {
  // `bazel run` starts a helper process that becomes a child of this one. `bazel test` does not.
  const bool had_children = has_children();
  const Census before = take_census();
  { Chaos().run(); }
  Census after;
  EXPECT_TRUE(returns_to(before, after)) << before.to_string() << " -> " << after.to_string();
  // This includes children of the workers, because orphans become children of this process
  // (PR_SET_CHILD_SUBREAPER).
  if (!kMayHaveSymbolizer && !had_children) {
    EXPECT_FALSE(has_children()) << "the runs left children or zombies";
  }
}

bool parse(absl::string_view argument) {
  if (absl::ConsumePrefix(&argument, "--seed=")) {
    flags.runs = 1;
    flags.verbose = true;
    return absl::SimpleAtoi(argument, &flags.first);
  }
  if (absl::ConsumePrefix(&argument, "--first=")) return absl::SimpleAtoi(argument, &flags.first);
  if (absl::ConsumePrefix(&argument, "--runs=")) return absl::SimpleAtoi(argument, &flags.runs);
  if (absl::ConsumePrefix(&argument, "--jobs="))
    return absl::SimpleAtoi(argument, &flags.jobs) && flags.jobs > 0;
  if (argument == "--same") return flags.same = true;
  if (argument == "--lose-services") return flags.lose_services = true;
  if (argument == "--verbose") return flags.verbose = true;
  return false;
}

}  // namespace
}  // namespace chaos

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (const char* runs = std::getenv("GRADWIRE_CHAOS_RUNS")) (void)absl::SimpleAtoi(runs, &chaos::flags.runs);
  for (int i = 1; i < argc; ++i) {
    if (!chaos::parse(argv[i])) {
      std::cerr << "unknown option or invalid value: " << argv[i]
                << "; the first lines of chaos_test.cc describe the options\n";
      return 2;
    }
  }
  if (chaos::flags.runs < 1) {
    std::cerr << "invalid number of runs: got --runs=" << chaos::flags.runs << ", expected 1 or more\n";
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return RUN_ALL_TESTS();
}
