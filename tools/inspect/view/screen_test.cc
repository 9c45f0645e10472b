#include "gradwire/tools/inspect/view/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/job_builder.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ScreenTest : public ::testing::Test {
 protected:
  ScreenTest() {
    std::vector<std::string> names;
    for (char name = 'a'; name <= 'z'; ++name) names.push_back(std::string(1, name) + "_worker");
    JobBuilder builder(names);
    for (int i = 0; i < 3; ++i) {
      builder.call("a_worker", "b_worker", absl::StrCat("function", i), absl::Seconds(10 + i));
    }
    report_.findings = analyze(builder.job, {});
    report_.job = std::move(builder.job);
  }

  std::string draw(std::size_t width = 120, std::size_t height = 12, const std::string& status = "") {
    lines_ = screen_.draw(report_, status, width, height);
    EXPECT_LE(lines_.size(), height);
    for (const std::string& line : lines_) EXPECT_LE(line.size(), width);
    return absl::StrJoin(lines_, "\n");
  }
  std::string selected() {
    draw();
    return screen_.selected_line() < lines_.size() ? lines_[screen_.selected_line()] : "";
  }

  Report report_;
  Screen screen_;
  std::vector<std::string> lines_;
};

TEST_F(ScreenTest, KeysOpenThePages) {
  EXPECT_THAT(draw(), AllOf(HasSubstr("[1 workers]"), HasSubstr("a_worker"), HasSubstr("q quit")));
  const char* const pages[] = {"workers", "findings", "calls", "functions",
                               "links",   "passes",   "rrefs", "groups"};
  for (std::size_t i = 0; i < Screen::kPages; ++i) {
    EXPECT_TRUE(screen_.press(std::string(1, static_cast<char>('1' + i))));
    EXPECT_THAT(draw(), HasSubstr(absl::StrCat("[", i + 1, " ", pages[i], "]")));
  }
  screen_.press("\t");
  EXPECT_THAT(draw(), HasSubstr("[1 workers]"));
  screen_.press("\x1b[D");
  EXPECT_THAT(draw(), HasSubstr("[8 groups]"));
  screen_.press("\x1b[C?");
  EXPECT_THAT(draw(), HasSubstr("the pages:"));
  screen_.press("x");
  EXPECT_THAT(draw(), Not(HasSubstr("the pages:")));
}

TEST_F(ScreenTest, QuitKeysEnd) {
  EXPECT_TRUE(screen_.press("jjkk\x1b[A\x1b[Z\x01\xff"));
  EXPECT_FALSE(screen_.press("q"));
  EXPECT_FALSE(screen_.press("\x03"));
  screen_.press("/");
  EXPECT_TRUE(screen_.press("q")) << "the filter is typed";
}

TEST_F(ScreenTest, SelectionScrollsAndStaysInTheTable) {
  EXPECT_THAT(selected(), HasSubstr("a_worker"));
  screen_.press("jj\x1b[B");
  EXPECT_THAT(selected(), HasSubstr("d_worker"));
  for (int i = 0; i < 100; ++i) screen_.press("\x1b[6~");
  EXPECT_THAT(selected(), HasSubstr("z_worker"));
  for (int i = 0; i < 100; ++i) screen_.press("k");
  EXPECT_THAT(selected(), HasSubstr("a_worker"));
}

TEST_F(ScreenTest, SortsByTheNextColumnAndInReverse) {
  screen_.press("3");
  EXPECT_THAT(selected(), HasSubstr("function2"));
  screen_.press("s");
  EXPECT_THAT(draw(), HasSubstr("agev"));
  screen_.press("r");
  EXPECT_THAT(draw(), HasSubstr("age^"));
  EXPECT_THAT(selected(), HasSubstr("function0"));
  screen_.press("r");
  for (std::size_t i = 0; i < 2; ++i) {
    screen_.press("s");
    draw();
  }
  EXPECT_THAT(draw(), HasSubstr("calleev"));
}

TEST_F(ScreenTest, FilterShowsOnlyMatchingRows) {
  screen_.press("3/FUNCTION1x\x7f");
  EXPECT_THAT(draw(), AllOf(HasSubstr("function1"), Not(HasSubstr("function2")), HasSubstr("/FUNCTION1_")));
  screen_.press("\r");
  EXPECT_THAT(draw(), AllOf(HasSubstr("/FUNCTION1"), Not(HasSubstr("FUNCTION1_"))));
  screen_.press("/nothing\r");
  EXPECT_THAT(draw(), HasSubstr("(nothing)"));
  screen_.press("\x1b");
  EXPECT_THAT(draw(), HasSubstr("function2"));
}

TEST_F(ScreenTest, EnterNarrowsAllPagesToTheSelectedWorker) {
  draw();
  screen_.press("j");
  draw();
  screen_.press("\r");
  EXPECT_THAT(draw(), AllOf(HasSubstr("worker b_worker"), Not(HasSubstr("c_worker"))));
  screen_.press("3");
  EXPECT_THAT(draw(), HasSubstr("function0"));
  screen_.press("\r");
  EXPECT_THAT(draw(), Not(HasSubstr("  worker b_worker")));
}

TEST_F(ScreenTest, PausesAndShowsTheReadersStatus) {
  EXPECT_FALSE(screen_.paused());
  screen_.press("p");
  EXPECT_TRUE(screen_.paused());
  EXPECT_THAT(draw(), HasSubstr("paused"));
  EXPECT_THAT(draw(120, 12, "the store\x1b[2J is gone"), HasSubstr("the store\\x1b[2J is gone"));
}

TEST_F(ScreenTest, AnySizeOfTheTerminalIsFine) {
  for (const std::size_t width : {0, 1, 7, 80, 500}) {
    for (const std::size_t height : {0, 1, 2, 5, 6, 100}) {
      for (const char* keys : {"1", "2", "3", "8", "?", "x"}) {
        screen_.press(keys);
        draw(width, height);
      }
    }
  }
  report_ = Report();
  screen_.press("1");
  EXPECT_THAT(draw(), HasSubstr("(nothing)"));
  screen_.press("\rs\r");
  draw();
}

}  // namespace
}  // namespace gradwire::inspect
