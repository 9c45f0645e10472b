// The distributed engine of libtorch computes the same gradients for the random programs as its local engine,
// and as Gradwire (random_programs_test). The programs use small integers in float64, so that the order of
// additions does not change a sum.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace {

constexpr int kWorkers = 4;
constexpr int kPrograms = 300;

// A torch_worker process, with pipes to its standard input and from its standard output. The destructor kills
// it if it still runs.
class Worker {
 public:
  Worker(int rank, const std::string& port) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    const std::vector<std::string> words = {
        "tests/autograd/torch_worker", absl::StrCat(rank), absl::StrCat(kWorkers), port, "1",
        absl::StrCat(kPrograms)};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~Worker() {
    ::close(to_);
    ::close(from_);
    if (reaped_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Reads the output of the worker, up to the end of the line or until the worker closes it. Needs no limit
  // of its own: the test has a time limit, and so does every wait of the worker.
  std::string read(bool one_line) const {
    std::string text;
    char c;
    while (true) {
      const ssize_t got = ::read(from_, &c, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || (one_line && c == '\n')) return text;
      text += c;
    }
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  bool reaped_ = false;
};

TEST(DistEngine, GradientsAreThoseOfOneProcess) {
  Worker driver(0, "0");
  const std::string port = driver.read(/*one_line=*/true);
  int number = 0;
  ASSERT_TRUE(absl::SimpleAtoi(port, &number)) << port << driver.read(/*one_line=*/false);
  std::vector<std::unique_ptr<Worker>> others;
  for (int rank = 1; rank < kWorkers; ++rank) others.push_back(std::make_unique<Worker>(rank, port));
  const std::string said = driver.read(/*one_line=*/false);
  EXPECT_EQ(driver.wait(), 0) << said;
  std::cout << said;
}

}  // namespace
