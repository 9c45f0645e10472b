#include "gradwire/tools/launch/io/pump.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/io/lines.h"

namespace gradwire::tools {
namespace {

TEST(LinePrefixer, LinesCutAnywhereComeOutWhole) {
  const std::string text = "one\n\ntwo\nlast";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    LinePrefixer prefixer("[p]:");
    std::string lines;
    prefixer.feed(text.substr(0, cut), lines);
    prefixer.feed(text.substr(cut), lines);
    EXPECT_EQ(lines, "[p]:one\n[p]:\n[p]:two\n");
    prefixer.finish(lines);
    EXPECT_EQ(lines, "[p]:one\n[p]:\n[p]:two\n[p]:last\n");
  }
}

TEST(LinePrefixer, LineOfTheMaximumLengthStaysWhole) {
  LinePrefixer prefixer("");
  std::string lines;
  prefixer.feed(std::string(LinePrefixer::kMaxLine, 'x'), lines);
  prefixer.feed("\n", lines);
  EXPECT_EQ(lines.size(), LinePrefixer::kMaxLine + 1);
}

TEST(LinePrefixer, LongerLineIsCutAndLosesNothing) {
  LinePrefixer prefixer("");
  std::string lines;
  for (int i = 0; i < 25; ++i) prefixer.feed(std::string(100000, 'x'), lines);
  prefixer.finish(lines);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), 'x'), 2500000);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
}

TEST(LinePrefixer, LinesThatPassThroughAreUnchanged) {
  const std::string text = "one\n\n10%\r20%\rlast";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    LinePrefixer prefixer = LinePrefixer::pass_through();
    std::string lines;
    prefixer.feed(text.substr(0, cut), lines);
    prefixer.feed(text.substr(cut), lines);
    EXPECT_EQ(lines, "one\n\n10%\r20%\r");
    prefixer.finish(lines);
    EXPECT_EQ(lines, text);
  }
  LinePrefixer endless = LinePrefixer::pass_through();
  std::string lines;
  for (int i = 0; i < 25; ++i) endless.feed(std::string(100000, 'x'), lines);
  // A line without an end is not kept until its end.
  EXPECT_GT(lines.size(), LinePrefixer::kMaxLine);
  endless.finish(lines);
  EXPECT_EQ(lines.size(), 2500000u);
}

// A fixture whose output pipe is read only when the test calls take().
class Pumping : public ::testing::Test {
 protected:
  Pumping() : loop_(*FdLoop::create()), output_(*make_pipe()), input_(*make_pipe()) {
    signal(SIGPIPE, SIG_IGN);
    fcntl(input_.write_end.get(), F_SETFL, O_NONBLOCK);
    fcntl(output_.read_end.get(), F_SETFL, O_NONBLOCK);
  }

  std::string take() {
    std::string text(1 << 16, '\0');
    const ssize_t got = read_retrying(output_.read_end.get(), text.data(), text.size());
    text.resize(got > 0 ? got : 0);
    return text;
  }

  FdLoop loop_;
  Pipe output_;
  Pipe input_;
};

TEST_F(Pumping, SlowReaderHoldsTheWriterBackAndLosesNothing) {
  OutputSink sink(loop_, output_.write_end.get());
  StreamPump pump(loop_, std::move(input_.read_end), {.sink = &sink, .lines = LinePrefixer("[a0]:")});
  sink.on_room([&] { pump.resume(); });

  const std::string line = std::string(99, 'x') + "\n";
  int written = 0;
  while (!sink.full()) {
    while (write_retrying(input_.write_end.get(), line.data(), line.size()) ==
           static_cast<ssize_t>(line.size()))
      ++written;
    loop_.run_once(absl::ZeroDuration());
  }
  // Now the pump is paused. When the pipe is full as well, the writer cannot continue, however often the loop
  // runs.
  while (write_retrying(input_.write_end.get(), line.data(), line.size()) ==
         static_cast<ssize_t>(line.size()))
    ++written;
  for (int i = 0; i < 10; ++i) loop_.run_once(absl::ZeroDuration());
  EXPECT_LT(write_retrying(input_.write_end.get(), line.data(), line.size()), 0);

  input_.write_end.reset();
  std::string all;
  while (pump.open() || !sink.empty()) {
    loop_.run_once(absl::ZeroDuration());
    all += take();
  }
  all += take();
  EXPECT_EQ(all.size(), written * (line.size() + 5));
  for (absl::string_view each : absl::StrSplit(all, '\n', absl::SkipEmpty()))
    ASSERT_EQ(each, absl::StrCat("[a0]:", std::string(99, 'x')));
}

TEST_F(Pumping, ReaderThatEndsStopsNobody) {
  OutputSink sink(loop_, output_.write_end.get());
  StreamPump pump(loop_, std::move(input_.read_end), {.sink = &sink, .lines = LinePrefixer("[a0]:")});
  output_.read_end.reset();
  ASSERT_TRUE(write_all(input_.write_end.get(), "x\n"));
  input_.write_end.reset();
  while (pump.open() || !sink.empty()) loop_.run_once(absl::Seconds(10));
}

TEST_F(Pumping, CloseTakesWhatIsThereAndDoesNotWait) {
  OutputSink sink(loop_, output_.write_end.get());
  StreamPump pump(loop_, std::move(input_.read_end), {.sink = &sink, .lines = LinePrefixer("[a0]:")});
  ASSERT_TRUE(write_all(input_.write_end.get(), "last words"));
  pump.close();
  EXPECT_FALSE(pump.open());
  while (!sink.empty()) loop_.run_once(absl::Seconds(10));
  EXPECT_EQ(take(), "[a0]:last words\n");
}

}  // namespace
}  // namespace gradwire::tools
