// Tests with many workers on one machine, and with many restarts.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

constexpr int kWorkers = 64;
constexpr int kLines = 1000;

std::string numbered_lines(absl::string_view stream, int rank) {
  std::string text;
  for (int i = 1; i <= kLines; ++i) absl::StrAppend(&text, stream, " ", rank, " ", i, "\n");
  return text;
}

std::string file_text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(LaunchMany, OutputOf64WorkersIsNotLostOrMixed) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/many");
  LaunchProcess launch(
      with_script({"--standalone", absl::StrCat("--nproc_per_node=", kWorkers), "--role=role", "--run_id=id",
                   "--tee=3", "--redirects=3", "--log_dir=" + directory},
                  "exec awk -v r=$RANK 'BEGIN { for (i = 1; i <= 1000; ++i) { print \"out\", r, i; "
                  "print \"err\", r, i > \"/dev/stderr\" } }'"));
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  for (const std::string stream : {"out", "err"}) {
    std::map<std::string, std::string> by_prefix;
    for (const std::string& line : lines(stream == "out" ? launch.out() : launch.err())) {
      if (absl::StartsWith(line, "launch: ")) continue;
      const size_t end = line.find("]:") + 2;
      ASSERT_GT(line.size(), end) << line;
      absl::StrAppend(&by_prefix[line.substr(0, end)], line.substr(end), "\n");
    }
    EXPECT_EQ(by_prefix.size(), kWorkers);
    for (int rank = 0; rank < kWorkers; ++rank) {
      const std::string expected = numbered_lines(stream, rank);
      EXPECT_TRUE(by_prefix[absl::StrCat("[role", rank, "]:")] == expected) << stream << rank;
      EXPECT_TRUE(file_text(absl::StrCat(directory, "/id/attempt_0/", rank, "/std", stream, ".log")) ==
                  expected)
          << stream << rank;
    }
  }
}

TEST(LaunchMany, RestartsLeaveNoDescriptorsBehind) {
  constexpr int kRestarts = 20;
  LaunchProcess launch(with_script(
      {"--standalone", "--nproc_per_node=4", absl::StrCat("--max_restarts=", kRestarts), "--tee=3",
       absl::StrCat("--log_dir=", ::testing::TempDir(), "/restarts")},
      absl::StrCat(
          "[ $RANK = 3 ] || { [ $TORCHELASTIC_RESTART_COUNT = ", kRestarts,
          " ] || sleep 1000; exit 0; }; ls /proc/$(cut -d ' ' -f 4 /proc/$PPID/stat)/fd | wc -l >&9; "
          "[ $TORCHELASTIC_RESTART_COUNT = ",
          kRestarts, " ]")));
  const std::vector<std::string> counts = launch.events(kRestarts + 1);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  ASSERT_EQ(counts.size(), kRestarts + 1u);
  // The launcher may not have closed the descriptors for the start of the last worker yet.
  constexpr int kDescriptorsOfOneStart = 5;
  EXPECT_LE(std::stoi(counts.back()), std::stoi(counts.front()) + kDescriptorsOfOneStart);
}

}  // namespace
}  // namespace gradwire::tests
