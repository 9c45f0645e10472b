#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"

// A process that crashes in a handler leaves the flight records of its agents.
namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

int64_t double_before_crash(int64_t value) { return 2 * value; }
GRADWIRE_RPC(double_before_crash)
int64_t crash() {
  int* volatile nowhere = nullptr;
  *nowhere = 1;
  return 0;
}
GRADWIRE_RPC(crash)

// The same in the process of the test and in its child, which starts the program again.
std::string directory() {
  const char* temporary = std::getenv("TEST_TMPDIR");
  return absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/crash_records");
}

void run_and_crash(const std::string& records) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  RpcBackendOptions options;
  options.flight.directory = records;
  testing::Group group(2, options);
  (void)group[0]->rpc_sync<&double_before_crash>("worker1", 4);
  (void)group[0]->rpc_sync<&crash>("worker1");
}

std::string all_files() {
  std::stringstream text;
  for (const auto& entry : std::filesystem::directory_iterator(directory())) {
    EXPECT_THAT(entry.path().string(), ::testing::EndsWith(".crash.jsonl"));
    struct stat info {};
    EXPECT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
    text << std::ifstream(entry.path()).rdbuf();
  }
  return text.str();
}

TEST(CrashRecord, CrashLeavesAFileOfEachAgent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::filesystem::remove_all(directory());
  EXPECT_EXIT(run_and_crash(directory()), ::testing::KilledBySignal(SIGSEGV),
              HasSubstr("was killed by SIGSEGV"));
  EXPECT_THAT(all_files(),
              AllOf(ContainsRegex(
                        R"("reason":"worker .*worker1.* was killed by SIGSEGV at address 0x0 while serving)"),
                    HasSubstr(R"("dump":"crash")"),
                    // worker0 has made the call, and it is open. worker1 has begun to serve it.
                    ContainsRegex(R"("side":"made"[^}]*double_before_crash"[^}]*"code":"OK"})"),
                    ContainsRegex(R"("side":"made"[^}]*crash","began":[0-9]+})"),
                    ContainsRegex(R"("side":"served"[^}]*crash","began":[0-9]+,"started":[0-9]+})"),
                    HasSubstr(R"({"type":"end","lines":)")));
}

TEST(CrashRecord, WithoutADirectoryOpenCallsAreWrittenToStandardError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  unsetenv("GRADWIRE_FLIGHT_DIR");
  EXPECT_EXIT(run_and_crash(""), ::testing::KilledBySignal(SIGSEGV),
              ContainsRegex(R"(  flight: .*"side":"served".*crash)"));
}

TEST(CrashRecord, DirectoryOfTheEnvironmentIsUsed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::filesystem::remove_all(directory());
  setenv("GRADWIRE_FLIGHT_DIR", directory().c_str(), 1);
  EXPECT_EXIT(run_and_crash(""), ::testing::KilledBySignal(SIGSEGV), "");
  unsetenv("GRADWIRE_FLIGHT_DIR");
  EXPECT_THAT(all_files(), HasSubstr(R"("dump":"crash")"));
}

}  // namespace
}  // namespace gradwire::rpc
