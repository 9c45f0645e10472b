#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

constexpr int kLinesOfWriter = 10000;
constexpr int kWriters = 4;

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string numbered_lines(int rank, const std::string& stream) {
  std::string text;
  for (int i = 1; i <= kLinesOfWriter; ++i) absl::StrAppend(&text, stream, " ", rank, " ", i, "\n");
  return text;
}

constexpr char kWriter[] =
    "awk -v r=$RANK 'BEGIN { for (i = 1; i <= 10000; ++i) { print \"out\", r, i; print \"err\", r, i > "
    "\"/dev/stderr\" } }'";

std::string log_dir(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }

TEST(LaunchOutput, TeedLinesAreWholePrefixedAndInOrder) {
  const std::string directory = log_dir("tee");
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=4", "--role=role", "--run_id=id",
                                    "--tee=3", "--log_dir=" + directory},
                                   kWriter));
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  std::map<std::string, std::string> by_worker;
  for (const std::string& text : {launch.out(), launch.err()}) {
    for (const std::string& line : lines(text)) {
      if (absl::StartsWith(line, "launch: ")) continue;
      const size_t end = line.find(':');
      ASSERT_NE(end, std::string::npos) << line;
      absl::StrAppend(&by_worker[absl::StrCat(line.substr(0, end + 1), line.substr(end + 1, 3))],
                      line.substr(end + 1), "\n");
    }
  }
  ASSERT_EQ(by_worker.size(), 2u * kWriters);
  for (int rank = 0; rank < kWriters; ++rank) {
    for (const std::string stream : {"out", "err"}) {
      EXPECT_TRUE(by_worker[absl::StrCat("[role", rank, "]:", stream)] == numbered_lines(rank, stream))
          << stream << rank;
      EXPECT_TRUE(text_of_file(absl::StrCat(directory, "/id/attempt_0/", rank, "/std", stream, ".log")) ==
                  numbered_lines(rank, stream))
          << stream << rank;
    }
  }
}

TEST(LaunchOutput, RedirectedLinesGoOnlyToFiles) {
  const std::string directory = log_dir("redirects");
  LaunchProcess launch(with_script(
      {"--standalone", "--nproc_per_node=4", "--run_id=id", "--redirects=3", "--log_dir", directory},
      kWriter));
  ASSERT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "");
  for (const std::string& line : lines(launch.err())) EXPECT_TRUE(absl::StartsWith(line, "launch: ")) << line;
  for (int rank = 0; rank < kWriters; ++rank) {
    for (const std::string stream : {"out", "err"}) {
      EXPECT_TRUE(text_of_file(absl::StrCat(directory, "/id/attempt_0/", rank, "/std", stream, ".log")) ==
                  numbered_lines(rank, stream));
    }
  }
}

TEST(LaunchOutput, StreamsAreChosenByLocalRank) {
  const std::string directory = log_dir("choice");
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=3", "--run_id=id", "--redirects=0:1",
                                    "--tee=1:2", "--log_dir=" + directory},
                                   "echo out $RANK; echo err $RANK >&2"));
  ASSERT_EQ(launch.wait(), 0);
  std::vector<std::string> out = lines(launch.out());
  std::sort(out.begin(), out.end());
  EXPECT_EQ(out, (std::vector<std::string>{"out 1", "out 2"}));
  EXPECT_EQ(text_of_file(directory + "/id/attempt_0/0/stdout.log"), "out 0\n");
  EXPECT_EQ(text_of_file(directory + "/id/attempt_0/1/stderr.log"), "err 1\n");
  EXPECT_TRUE(absl::StrContains(launch.err(), "[default1]:err 1\n")) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), "err 0\n"));
  EXPECT_FALSE(std::ifstream(directory + "/id/attempt_0/2/stdout.log").good());
}

TEST(LaunchOutput, LastOutputOfAFailingWorkerIsNotLost) {
  LaunchProcess launch(with_script({"--standalone", "--tee=3", "--log_dir=" + log_dir("last")},
                                   "printf 'no newline'; kill -KILL $$"));
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_EQ(launch.out(), "[default0]:no newline\n");
}

std::string printed_by(int rank) {
  std::string text;
  for (int i = 1; i <= 100; ++i) absl::StrAppend(&text, "rank ", rank, " line ", i, "\n");
  return text;
}

// Returns the lines of `text` that contain `part`.
std::string lines_with(const std::string& text, const std::string& part) {
  std::string found;
  for (const std::string& line : lines(text)) {
    if (absl::StrContains(line, part)) absl::StrAppend(&found, line, "\n");
  }
  return found;
}

// Kills worker 0 when all have printed; the launcher then ends the others with SIGTERM.
void print_and_be_killed(LaunchProcess& launch) {
  for (const std::string& event : launch.events(kWriters)) {
    if (event[0] == '0') kill(std::stoi(event.substr(2)), SIGKILL);
  }
  EXPECT_EQ(launch.wait(), 128 + SIGKILL) << launch.err();
}

TEST(LaunchOutput, KilledWorkersLoseNoLineThatTheyPrinted) {
  GRADWIRE_NEEDS("pseudo_terminals", test_needs::pseudo_terminals());
  const std::string directory = log_dir("killed");
  LaunchProcess plain({"--standalone", "--nproc_per_node=4", "tests/launch/output_worker"});
  print_and_be_killed(plain);
  LaunchProcess teed({"--standalone", "--nproc_per_node=4", "--tee=1", "--run_id=tee",
                      "--log_dir=" + directory, "tests/launch/output_worker"});
  print_and_be_killed(teed);
  LaunchProcess filed({"--standalone", "--nproc_per_node=4", "--redirects=1", "--run_id=file",
                       "--log_dir=" + directory, "tests/launch/output_worker"});
  print_and_be_killed(filed);
  EXPECT_EQ(filed.out(), "");
  for (int rank = 0; rank < kWriters; ++rank) {
    EXPECT_EQ(lines_with(plain.out(), absl::StrCat("rank ", rank, " ")), printed_by(rank));
    EXPECT_EQ(lines(lines_with(teed.out(), absl::StrCat("[default", rank, "]:rank ", rank, " "))).size(),
              100u);
    EXPECT_EQ(text_of_file(absl::StrCat(directory, "/tee/attempt_0/", rank, "/stdout.log")),
              printed_by(rank));
    EXPECT_EQ(text_of_file(absl::StrCat(directory, "/file/attempt_0/", rank, "/stdout.log")),
              printed_by(rank));
  }
}

TEST(LaunchOutput, StandardOutputIsATerminalUnlessDisabled) {
  GRADWIRE_NEEDS("pseudo_terminals", test_needs::pseudo_terminals());
  constexpr char kScript[] = "[ -t 1 ] && echo terminal $TERM || echo pipe $TERM; [ -t 2 ] && echo terminal";
  for (const auto& [option, expected] : std::map<std::string, std::string>{
           {"--line_buffered", "terminal dumb\n"}, {"--line_buffered=false", "pipe xterm\n"}}) {
    LaunchProcess launch(
        with_script({"--standalone", option, "--redirects=0", "--tee=2", "--log_dir=" + log_dir("terminal")},
                    absl::StrCat(kScript, "; exit 0")),
        {{"TERM", "xterm"}});
    EXPECT_EQ(launch.wait(), 0) << launch.err();
    EXPECT_EQ(launch.out(), expected);
  }
}

TEST(LaunchOutput, OutputWithoutANewlineIsUnchanged) {
  LaunchProcess launch(with_script({"--standalone"}, "printf 'a\\r\\nb\\tno newline'"));
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "a\r\nb\tno newline");
}

TEST(LaunchOutput, ProcessThatLeftItsGroupWithThePipeIsEnded) {
  LaunchProcess launch(
      with_script({"--standalone", "--tee=1", "--log_dir=" + log_dir("held")},
                  "trap 'echo said; exit 0' USR1; echo $$ >&9; "
                  "setsid sh -c 'echo $$ >&9; exec sleep 1000' & while :; do sleep 0.05; done"));
  const int worker = std::stoi(launch.events(1).at(0));
  const int daemon = std::stoi(launch.events(1).at(0));
  kill(worker, SIGUSR1);
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "[default0]:said\n");
  EXPECT_EQ(kill(daemon, 0), -1);
}

TEST(LaunchOutput, WithoutALogDirectoryATemporaryOneIsNamed) {
  const std::string temporary = ::testing::TempDir();
  LaunchProcess launch(with_script({"--standalone", "--redirects=1"}, "echo here"), {{"TMPDIR", temporary}});
  EXPECT_EQ(launch.wait(), 0);
  constexpr char kAnnouncement[] = "the workers' output is in ";
  const std::string err = launch.err();
  const size_t at = err.find(kAnnouncement);
  ASSERT_NE(at, std::string::npos) << err;
  const size_t begin = at + sizeof(kAnnouncement) - 1;
  const std::string directory = err.substr(begin, err.find('\n', begin) - begin);
  EXPECT_TRUE(absl::StartsWith(directory, temporary)) << directory;
  EXPECT_EQ(text_of_file(directory + "/attempt_0/0/stdout.log"), "here\n");
}

TEST(LaunchOutput, SecondRunOfOneIdDoesNotTouchTheFirstOnesFiles) {
  const std::string directory = log_dir("twice");
  for (const char* word : {"first", "second"}) {
    LaunchProcess launch(
        with_script({"--standalone", "--run_id=id", "--redirects=1", "--log_dir=" + directory},
                    absl::StrCat("echo ", word)));
    EXPECT_EQ(launch.wait(), 0);
  }
  EXPECT_EQ(text_of_file(directory + "/id/attempt_0/0/stdout.log"), "first\n");
}

TEST(LaunchOutput, LogDirectoryThatCannotBeCreatedExitsWithOneAndOneLine) {
  const std::string file = log_dir("file");
  std::ofstream(file) << "x";
  LaunchProcess launch({"--standalone", "--redirects=1", "--log_dir=" + file + "/logs", "true"});
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_EQ(lines(launch.err()).size(), 1u) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), file)) << launch.err();
}

}  // namespace
}  // namespace gradwire::tests
