#include "gradwire/base/flight/flight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/flight/code_name.h"
#include "gradwire/base/flight/flight_record_signal.h"
#include "gradwire/base/flight/json_line.h"
#include "gradwire/base/testing/eventually.h"

namespace gradwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Source final : public FlightSource {
 public:
  explicit Source(std::string name, std::string directory = "")
      : name_(std::move(name)), directory_(std::move(directory)) {
    attach();
  }
  ~Source() override { detach(); }
  void write(FlightSink& sink, absl::string_view reason, FlightDump dump) const override {
    JsonLine header = flight_header("agent", reason);
    header.text("dump", dump == FlightDump::kCrash ? "crash" : "ordinary");
    sink.line(header.end(), /*open=*/false);
    JsonLine open("open");
    sink.line(open.text("name", name_).end(), /*open=*/true);
  }
  std::string text(std::size_t lines) const override { return absl::StrCat(name_, " in ", lines, " lines"); }
  absl::string_view file_name() const override { return name_; }
  absl::string_view directory() const override { return directory_; }

 private:
  const std::string name_;
  const std::string directory_;
};

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

std::string folder(const char* name) {
  return absl::StrCat(::testing::TempDir(), "/", name, "-", ::getpid());
}

TEST(FlightSource, FileIsPrivateAndReplaced) {
  const std::string directory = folder("private") + "/below";
  const Source source("one", directory);
  ASSERT_TRUE(dump_flight_record(source, "first").ok());
  ASSERT_TRUE(dump_flight_record(source, "second \"quoted\"").ok());
  const std::string text = content(directory + "/one.jsonl");
  EXPECT_THAT(text, AllOf(HasSubstr(R"("reason":"second \"quoted\"")"), HasSubstr(R"("name":"one")"),
                          Not(HasSubstr("first"))));
  EXPECT_EQ(mode_of(directory), 0700u);
  EXPECT_EQ(mode_of(directory + "/one.jsonl"), 0600u);
  EXPECT_FALSE(std::filesystem::exists(directory + "/one.jsonl.partial"));
}

TEST(FlightSource, LinkAtItsPathIsNotFollowed) {
  const std::string directory = folder("link");
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  const std::string other = directory + "/other";
  std::ofstream(other) << "kept";
  ASSERT_EQ(::symlink(other.c_str(), (directory + "/two.jsonl.partial").c_str()), 0);
  ASSERT_EQ(::symlink(other.c_str(), (directory + "/two.jsonl").c_str()), 0);
  const Source source("two", directory);
  ASSERT_TRUE(dump_flight_record(source, "a reason").ok());
  EXPECT_EQ(content(other), "kept");
  EXPECT_THAT(content(directory + "/two.jsonl"), HasSubstr("a reason"));
}

TEST(FlightSource, WithoutADirectoryAShortTextIsLogged) {
  const Source source("three");
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(dump_flight_record(source, "it hangs").ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("it hangs; three in 10 lines"));
}

TEST(FlightSource, DirectoryThatCannotBeMadeIsAnErrorAndTheTextIsLogged) {
  const std::string file = folder("file");
  std::ofstream(file) << "no directory";
  const Source source("four", file + "/below");
  ::testing::internal::CaptureStderr();
  const absl::Status status = dump_flight_record(source, "it hangs");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("four in 10 lines"));
}

TEST(FlightSource, DumpOfTheProcessHasTheSourcesThatExist) {
  const std::string directory = folder("all");
  const Source one("one", directory);
  { const Source gone("gone", directory); }
  const Source two("two", directory);
  ASSERT_TRUE(dump_flight_records("all of them").ok());
  EXPECT_THAT(content(directory + "/one.jsonl"), HasSubstr("all of them"));
  EXPECT_THAT(content(directory + "/two.jsonl"), HasSubstr("all of them"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/gone.jsonl"));
}

TEST(FlightSource, SignalHasTheRecordsWritten) {
  const std::string directory = folder("signal");
  const Source source("five", directory);
  ASSERT_TRUE(install_flight_record_signal(SIGUSR1).ok());
  const int before = flight_records_written();
  ASSERT_EQ(raise(SIGUSR1), 0);
  ASSERT_TRUE(eventually([before] { return flight_records_written() > before; }));
  EXPECT_THAT(content(directory + "/five.jsonl"), HasSubstr("requested by a signal"));
}

// A forked child inherits the sources, but they belong to its parent. rpc/flight/crash_record_test.cc has the
// crash of a process.
TEST(FlightSource, CrashOfAForkedChildWritesNothing) {
  const std::string directory = folder("crash");
  const Source source("six", directory);
  EXPECT_EXIT(
      {
        dump_flight_records_in_crash("worker \"a\" was killed");
        _exit(3);
      },
      ::testing::ExitedWithCode(3), "");
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST(JsonLine, EscapesAndBoundsWhatOthersHaveSent) {
  JsonLine line("call");
  line.text("name", "a\"b\\c\n\xff\x01").number("less", -5).number("most", INT64_MIN).id("id", 0x1f);
  EXPECT_EQ(line.end(),
            R"({"type":"call","name":"a\"b\\c???","less":-5,"most":-9223372036854775808,"id":"0x1f"})");
  EXPECT_TRUE(line.complete());
  JsonLine longer("call");
  longer.text("name", std::string(5000, 'x'));
  EXPECT_LE(longer.end().size(), JsonLine::kSize);
  EXPECT_FALSE(longer.complete());
}

TEST(CodeName, IsThatOfAbseil) {
  for (int code = 0; code <= 16; ++code)
    EXPECT_EQ(code_name(code), absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  EXPECT_EQ(code_name(17), "?");
}

}  // namespace
}  // namespace gradwire
