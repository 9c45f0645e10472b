#include "gradwire/base/process/crash_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;
using ::testing::Not;

// Each case crashes in a separate child process.
class CrashHandler : public ::testing::Test {
 protected:
  void SetUp() override {
    record_ = absl::StrCat(::testing::TempDir(), "/crash.", getpid(), ".json");
    unlink(record_.c_str());
    setenv("TORCHELASTIC_ERROR_FILE", record_.c_str(), 1);
    unsetenv("GRADWIRE_CRASH_HANDLER");
  }

  // The content of the launcher's error file; empty if the file does not exist.
  std::string record() const {
    std::ifstream file(record_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string record_;
};

// Prevents core files.
void disable_core_files() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
}

__attribute__((noinline)) void write_to_nowhere() {
  int* volatile nowhere = nullptr;
  *nowhere = 1;
}

__attribute__((noinline)) int overflow_stack(int depth) {
  volatile char frame[4096];
  frame[depth % 4096] = 1;
  return depth < 0 ? 0 : overflow_stack(depth + 1) + frame[0];
}

TEST_F(CrashHandler, ReportsCalleeCallerAndStack) {
  EXPECT_EXIT(
      {
        disable_core_files();
        install_crash_handler();
        const ServingScope serving("server0", "demo::scale", "trainer1");
        { const ServingScope inner("server0", "demo::inner", "trainer2"); }
        write_to_nowhere();
      },
      KilledBySignal(SIGSEGV),
      AllOf(HasSubstr(
                "worker \"server0\" was killed by SIGSEGV at address 0x0 while serving \"demo::scale\" for "
                "worker \"trainer1\"\n  @ 0x"),
            HasSubstr("write_to_nowhere")));
  EXPECT_THAT(
      record(),
      HasSubstr(R"("message": "worker \"server0\" was killed by SIGSEGV at address 0x0 while serving )"
                R"(\"demo::scale\" for worker \"trainer1\"", "extraInfo": {"timestamp": ")"));
}

TEST_F(CrashHandler, OutsideOfServingNamesTheProcess) {
  EXPECT_EXIT(
      {
        disable_core_files();
        install_crash_handler();
        install_crash_handler();
        abort();
      },
      KilledBySignal(SIGABRT), AllOf(HasSubstr(" was killed by SIGABRT\n  @ "), Not(HasSubstr("serving"))));
}

TEST_F(CrashHandler, StackOverflowIsReported) {
  EXPECT_EXIT(
      {
        disable_core_files();
        install_crash_handler();
        exit(overflow_stack(0));
      },
      KilledBySignal(SIGSEGV), HasSubstr("was killed by SIGSEGV at address"));
}

TEST_F(CrashHandler, SignalFromElsewhereEndsTheProcessToo) {
  EXPECT_EXIT(
      {
        disable_core_files();
        install_crash_handler();
        kill(getpid(), SIGBUS);
      },
      KilledBySignal(SIGBUS), HasSubstr("was killed by SIGBUS\n"));
}

TEST_F(CrashHandler, EnvironmentSwitchesItOff) {
  setenv("GRADWIRE_CRASH_HANDLER", "0", 1);
  EXPECT_EXIT(
      {
        disable_core_files();
        install_crash_handler();
        write_to_nowhere();
      },
      KilledBySignal(SIGSEGV), Not(HasSubstr("killed")));
  EXPECT_EQ(record(), "");
}

TEST_F(CrashHandler, ProgramsOwnHandlerStays) {
  EXPECT_EXIT(
      {
        disable_core_files();
        signal(SIGSEGV, [](int) { _exit(7); });
        install_crash_handler();
        write_to_nowhere();
      },
      ::testing::ExitedWithCode(7), Not(HasSubstr("killed")));
}

TEST_F(CrashHandler, ExistingErrorFileIsKept) {
  std::ofstream(record_) << "first";
  EXPECT_EXIT(
      {
        disable_core_files();
        install_crash_handler();
        abort();
      },
      KilledBySignal(SIGABRT), HasSubstr("killed"));
  EXPECT_EQ(record(), "first");
}

TEST_F(CrashHandler, ForkedChildRecordsNothing) {
  EXPECT_EXIT(
      {
        disable_core_files();
        install_crash_handler();
        const pid_t child = fork();
        if (child == 0) abort();
        int status = 0;
        waitpid(child, &status, 0);
        exit(WIFSIGNALED(status) ? 3 : 4);
      },
      ::testing::ExitedWithCode(3), HasSubstr("killed by SIGABRT"));
  EXPECT_EQ(record(), "");
}

}  // namespace
}  // namespace gradwire
