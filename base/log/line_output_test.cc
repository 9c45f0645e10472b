#include "gradwire/base/log/line_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/full_pipe.h"
#include "gradwire/base/testing/test_needs.h"

namespace gradwire {
namespace {

constexpr char kClear[] = "\r\x1b[K";

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  // The read end of a pseudo terminal fails with EIO after the last process has closed the other end.
  while ((got = read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, got);
  return text;
}

struct Outcome {
  std::string output;
  int status = 0;  // As waitpid() gives it.
};

// Runs `work` in a child process whose controlling terminal is a new pseudo terminal with 40 columns, of
// which the child is the foreground job.
Outcome on_terminal(const std::function<void(int terminal)>& work) {
  Descriptor screen(posix_openpt(O_RDWR | O_NOCTTY));
  EXPECT_TRUE(screen.valid() && grantpt(screen.get()) == 0 && unlockpt(screen.get()) == 0);
  const std::string name = ptsname(screen.get());
  // The parent keeps the terminal open until the child has ended, so that nothing is read as its end before.
  Descriptor held(open(name.c_str(), O_RDWR | O_NOCTTY));
  termios mode{};
  EXPECT_EQ(tcgetattr(held.get(), &mode), 0);
  cfmakeraw(&mode);
  EXPECT_EQ(tcsetattr(held.get(), TCSANOW, &mode), 0);
  winsize size{};
  size.ws_col = 40;
  EXPECT_EQ(ioctl(held.get(), TIOCSWINSZ, &size), 0);
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    const int terminal = open(name.c_str(), O_RDWR);
    ioctl(terminal, TIOCSCTTY, 0);
    work(terminal);
    _exit(0);
  }
  Outcome run;
  EXPECT_EQ(waitpid(child, &run.status, 0), child);
  held.reset();
  run.output = read_all(screen.get());
  return run;
}

class LineOutputOnATerminal : public ::testing::Test {
 protected:
  void SetUp() override { GRADWIRE_NEEDS("pseudo_terminals", test_needs::pseudo_terminals()); }
};

TEST_F(LineOutputOnATerminal, MovingLineIsDrawnInPlaceAndCleared) {
  const Outcome run = on_terminal([](int terminal) {
    LineOutput output(terminal);
    if (!output.can_move()) _exit(1);
    output.draw(&output, "waiting (1s)");
    output.draw(&output, "waiting (2s)");
    output.clear(&output);
  });
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.output, absl::StrCat(kClear, "waiting (1s)", kClear, "waiting (2s)", kClear));
}

TEST_F(LineOutputOnATerminal, LinesGoAboveTheMovingLine) {
  const Outcome run = on_terminal([](int terminal) {
    LineOutput output(terminal);
    output.write("before\n");
    output.draw(&output, "waiting");
    output.write("one\n");
    output.write("two\n");
    output.clear(&output);
    output.write("after\n");
  });
  EXPECT_EQ(run.output, absl::StrCat("before\n", kClear, "waiting", kClear, "one\nwaiting", kClear,
                                     "two\nwaiting", kClear, "after\n"));
}

TEST_F(LineOutputOnATerminal, MovingLineIsCutToTheTerminal) {
  const Outcome run = on_terminal([](int terminal) {
    LineOutput output(terminal);
    output.draw(&output, std::string(30, 'x') + "äöüäöüäöüäöüäöü");
  });
  // 39 of 40 columns.
  EXPECT_EQ(run.output, absl::StrCat(kClear, std::string(30, 'x'), "äöüäöüäöü"));
}

TEST_F(LineOutputOnATerminal, OnlyTheOwnerClearsItsLine) {
  const Outcome run = on_terminal([](int terminal) {
    LineOutput output(terminal);
    const int first = 0, second = 0;
    output.draw(&first, "first");
    output.draw(&second, "second");
    output.clear(&first);
    output.write("x\n");
    output.clear(&second);
    output.clear(&second);
    output.draw(&first, "again");
    output.clear_any();
    output.clear_any();
  });
  EXPECT_EQ(run.output, absl::StrCat(kClear, "first", kClear, "second", kClear, "x\nsecond", kClear, kClear,
                                     "again", kClear));
}

TEST_F(LineOutputOnATerminal, SignalThatEndsTheProcessClearsTheLine) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Outcome run = on_terminal([&](int terminal) {
      LineOutput output(terminal);
      output.draw(&output, "waiting");
      raise(signal);
    });
    EXPECT_TRUE(WIFSIGNALED(run.status));
    EXPECT_EQ(WTERMSIG(run.status), signal);
    EXPECT_EQ(run.output, absl::StrCat(kClear, "waiting", kClear));
  }
}

TEST_F(LineOutputOnATerminal, HandlersOfTheProgramAreLeftAlone) {
  const Outcome run = on_terminal([](int terminal) {
    struct sigaction action {};
    action.sa_handler = [](int) { _exit(7); };
    sigaction(SIGTERM, &action, nullptr);
    signal(SIGHUP, SIG_IGN);
    LineOutput output(terminal);
    output.draw(&output, "waiting");
    raise(SIGHUP);
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFEXITED(run.status));
  EXPECT_EQ(WEXITSTATUS(run.status), 7);
}

TEST_F(LineOutputOnATerminal, SignalsAreAsBeforeWithoutAMovingLine) {
  const Outcome run = on_terminal([](int terminal) {
    LineOutput output(terminal);
    output.draw(&output, "waiting");
    output.clear(&output);
    for (const int each : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction present {};
      sigaction(each, nullptr, &present);
      if (present.sa_handler != SIG_DFL) _exit(1);
    }
  });
  EXPECT_EQ(run.status, 0);
}

TEST_F(LineOutputOnATerminal, ProcessInTheBackgroundDrawsNothing) {
  const Outcome run = on_terminal([](int terminal) {
    // The child of the foreground process gets a process group of its own, as the workers of a launcher do.
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      LineOutput output(terminal);
      output.draw(&output, "waiting");
      output.write("line\n");
      _exit(output.can_move() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  });
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.output, "line\n");
}

TEST_F(LineOutputOnATerminal, ForkedChildHasNoMovingLine) {
  const Outcome run = on_terminal([](int terminal) {
    LineOutput output(terminal);
    output.draw(&output, "waiting");
    const pid_t child = fork();
    if (child == 0) {
      output.draw(&output, "child");
      output.clear(&output);
      output.write("\nline\n");
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
  });
  EXPECT_EQ(run.output, absl::StrCat(kClear, "waiting\nline\n"));
}

TEST(LineOutput, PipeGetsPlainLines) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Descriptor reader(ends[0]), writer(ends[1]);
  LineOutput output(writer.get());
  EXPECT_FALSE(output.can_move());
  output.draw(&output, "waiting");
  output.write("line\n");
  output.clear(&output);
  writer.reset();
  EXPECT_EQ(read_all(reader.get()), "line\n");
}

TEST(LineOutput, ThreadOnDutyDoesNotWaitAndLosesNoLine) {
  FullPipe pipe;
  LineOutput output(pipe.in());
  {
    const DutyScope duty;
    output.write("first\n");
    output.write("second\n");
  }
  pipe.drain();
  output.write("third\n");
  {
    const DutyScope duty;
    output.write("fourth\n");
  }
  EXPECT_EQ(pipe.rest(), "first\nsecond\nthird\nfourth\n");
}

TEST(LineOutput, FlushWritesWhatIsKeptAndWaitsNoLongerThanItMay) {
  FullPipe pipe;
  LineOutput output(pipe.in());
  {
    const DutyScope duty;
    output.write("kept\n");
  }
  output.flush(absl::Milliseconds(1));
  pipe.drain();
  output.flush(absl::Seconds(60));
  EXPECT_EQ(pipe.rest(), "kept\n");
}

TEST(LineOutput, LongLinesOfAThreadOnDutyArriveWhole) {
  FullPipe pipe;
  LineOutput output(pipe.in());
  const std::string line = std::string(20'000, 'a') + "\n";
  {
    const DutyScope duty;
    output.write(line);
  }
  pipe.drain();
  output.flush(absl::Seconds(60));
  EXPECT_EQ(pipe.rest(), line);
}

TEST(LineOutput, LinesBeyondTheLimitAreDroppedAndCounted) {
  FullPipe pipe;
  LineOutput output(pipe.in());
  const std::string line = std::string(999, 'a') + "\n";
  const int fit = static_cast<int>(LineOutput::kMostKept / line.size());
  {
    const DutyScope duty;
    for (int i = 0; i < fit + 7; ++i) output.write(line);
  }
  std::string all;
  std::thread reader([&] {
    pipe.drain();
    all = pipe.rest_until_closed();
  });
  output.flush(absl::Seconds(60));
  pipe.close();
  reader.join();
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), fit + 1);
  EXPECT_THAT(all, testing::HasSubstr("7 lines are missing here"));
}

TEST(LineOutput, WriterThatWaitsWritesWhatIsKeptMeanwhile) {
  FullPipe pipe;
  LineOutput output(pipe.in());
  std::thread writer([&] { output.write("waits\n"); });
  // The writer may be waiting already, or may come later.
  for (int i = 0; i < 100; ++i) {
    const DutyScope duty;
    output.write("kept\n");
  }
  pipe.drain();
  writer.join();
  output.flush(absl::Seconds(60));
  const std::string all = pipe.rest();
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 101);
}

}  // namespace
}  // namespace gradwire
