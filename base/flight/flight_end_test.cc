// Processes of a job with a trace: their sources are written when they end, however they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/base/flight/json_line.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EndingSource final : public FlightSource {
 public:
  explicit EndingSource(std::string name) : name_(std::move(name)) { attach(); }
  ~EndingSource() override { detach(); }
  void write(FlightSink& sink, absl::string_view reason, FlightDump dump) const override {
    JsonLine header = flight_header("agent", reason);
    header.text("dump", dump == FlightDump::kCrash ? "crash" : "ordinary");
    sink.line(header.end(), /*open=*/false);
  }
  std::string text(std::size_t) const override { return name_; }
  absl::string_view file_name() const override { return name_; }
  // The directory of a trace takes its place.
  absl::string_view directory() const override { return "/nowhere/at/all"; }

 private:
  const std::string name_;
};

// The same in the process of the test and in its child, which starts the program again.
std::string directory() { return absl::StrCat(::testing::TempDir(), "/flight_end"); }

std::string content_in_directory(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(absl::StrCat(directory(), "/", name)).rdbuf();
  return text.str();
}

class FlightEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::filesystem::remove_all(directory());
    setenv("GRADWIRE_TRACE_DIR", directory().c_str(), 1);
  }
  void TearDown() override { unsetenv("GRADWIRE_TRACE_DIR"); }
};
using FlightEndDeathTest = FlightEnd;

TEST_F(FlightEndDeathTest, SourceThatEndsLeavesItsFile) {
  EXPECT_EXIT(
      {
        { const EndingSource source("ended"); }
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_THAT(content_in_directory("ended.jsonl"),
              AllOf(HasSubstr("the source of the records has ended"), HasSubstr("\"dump\":\"ordinary\""),
                    HasSubstr("\"boot\":\"")));
}

TEST_F(FlightEndDeathTest, SourceThatIsThereAtExitLeavesItsFile) {
  EXPECT_EXIT(
      {
        [[maybe_unused]] static auto* leaked = new EndingSource("leaked");
        std::exit(3);
      },
      ::testing::ExitedWithCode(3), "");
  EXPECT_THAT(content_in_directory("leaked.jsonl"), HasSubstr("the process has ended"));
}

TEST_F(FlightEndDeathTest, ForkedChildWritesNothingInItsParentsPlace) {
  EXPECT_EXIT(
      {
        [[maybe_unused]] static auto* leaked = new EndingSource("parent");
        if (fork() == 0) std::exit(0);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(content_in_directory("parent.jsonl"), "");
}

TEST_F(FlightEndDeathTest, SignalEndsTheProcessAsEverAndLeavesTheFile) {
  EXPECT_EXIT(
      {
        [[maybe_unused]] static auto* leaked = new EndingSource("signalled");
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_THAT(content_in_directory("signalled.crash.jsonl"),
              AllOf(HasSubstr("the process was ended by SIGTERM"), HasSubstr("\"dump\":\"crash\"")));
}

TEST_F(FlightEndDeathTest, SignalThatTheProgramHandlesStaysItsOwn) {
  EXPECT_EXIT(
      {
        signal(SIGTERM, [](int) { _exit(7); });
        signal(SIGINT, SIG_IGN);
        [[maybe_unused]] static auto* leaked = new EndingSource("handled");
        raise(SIGINT);
        raise(SIGTERM);
      },
      ::testing::ExitedWithCode(7), "");
  EXPECT_EQ(content_in_directory("handled.crash.jsonl"), "");
}

TEST_F(FlightEndDeathTest, WithoutATraceNothingIsWrittenAtTheEnd) {
  unsetenv("GRADWIRE_TRACE_DIR");
  setenv("GRADWIRE_FLIGHT_DIR", directory().c_str(), 1);
  EXPECT_EXIT(
      {
        { const EndingSource source("ended"); }
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  unsetenv("GRADWIRE_FLIGHT_DIR");
  EXPECT_EQ(content_in_directory("ended.jsonl"), "");
}

}  // namespace
}  // namespace gradwire
