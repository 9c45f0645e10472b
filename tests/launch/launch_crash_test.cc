// Tests of a worker that crashes while it serves a call. Not with sanitizers, which have crash handlers of
// their own.
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/match.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

TEST(LaunchCrash, CrashNamesTheCallAndItsCaller) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "tests/launch/rpc_worker", "crash"});
  EXPECT_EQ(launch.wait(), 128 + SIGSEGV);
  for (const char* part :
       {"rank      0 (local rank 0, role default)", "ended by  SIGSEGV",
        "  message   worker \"default0\" was killed by SIGSEGV at address 0x0 while serving",
        "for worker \"default1\"", "  @ 0x"}) {
    EXPECT_TRUE(absl::StrContains(launch.err(), part)) << launch.err() << "\n  lacks " << part;
  }
  // The function is named in the summary's message, on standard error and in the stack.
  EXPECT_TRUE(absl::StrContains(launch.err(), "crash_on_call\" for worker \"default1\"\n  @ 0x"))
      << launch.err();
}

}  // namespace
}  // namespace gradwire::tests
