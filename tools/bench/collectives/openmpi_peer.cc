#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/tools/bench/collectives/collective_member.h"
#include "gradwire/tools/bench/collectives/openmpi_source.h"

namespace gradwire::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// Throws std::runtime_error with the description of errno, if it is set.
[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(errno != 0 ? absl::StrCat(what, ": ", std::strerror(errno)) : what);
}

// Runs a program to its end and returns its exit status; -1 on failure. The program inherits the output of
// this process.
int run_program(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = -1;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A temporary folder that the destructor removes.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char path[] = "/tmp/gradwire_bench.XXXXXX";
    if (mkdtemp(path) == nullptr) fail("cannot create a temporary folder");
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class OpenMpiPeer final : public BenchProcess {
 public:
  std::string listen(const Endpoint&) override {
    // Only check for mpicc. The program is compiled in start(), in a folder that is removed as soon as the
    // ranks run: bench processes end without destructors, so no files may exist at that time.
    if (run_program({"mpicc", "--version"}) != 0) {
      throw std::runtime_error("mpicc not found; install libopenmpi-dev and openmpi-bin (tools/setup --mpi)");
    }
    return "";
  }

  Measurement run(const Task& task) override {
    collective_work work = {};
    if (collective_parse(task.case_name.c_str(), &work) == 0)
      throw std::invalid_argument("unknown case " + task.case_name);
    if (ranks_.empty()) start(work.ranks);
    if (static_cast<int>(ranks_.size()) != work.ranks)
      throw std::invalid_argument(absl::StrCat("number of ranks changed: started with ", ranks_.size(),
                                               ", the case ", task.case_name, " has ", work.ranks));
    const std::string order = absl::StrCat(task.case_name, " ", task.seconds, "\n");
    for (const int fd : ranks_) put(fd, order);
    Measurement measured;
    const absl::Time deadline = absl::Now() + kTimeout + 4 * absl::Seconds(task.seconds);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      int64_t answer[4] = {};
      get(ranks_[rank], answer, sizeof answer, deadline);
      if (rank == 0 && answer[2] >= 0 && answer[2] <= 4'000'000) {
        measured.micros.resize(static_cast<std::size_t>(answer[2]));
        get(ranks_[rank], measured.micros.data(), measured.micros.size() * sizeof(float), deadline);
        measured.calls = answer[1];
        measured.timed_calls = answer[2];
      }
      if (answer[0] != 1) throw std::runtime_error(absl::StrCat("wrong result on rank ", rank));
    }
    return measured;
  }

 private:
  void start(int ranks) {
    const TemporaryFolder folder;
    const std::string source = folder.file("openmpi_member.c");
    const std::string program = folder.file("openmpi_member");
    const std::string address = folder.file("socket");
    std::ofstream(source) << kOpenMpiSource;
    if (run_program({"mpicc", "-O3", "-w", "-o", program, source}) != 0) {
      throw std::runtime_error("mpicc cannot compile the program for Open MPI");
    }
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    address.copy(name.sun_path, sizeof name.sun_path - 1);
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 ||
        ::listen(listener, ranks) != 0) {
      fail("cannot listen for the ranks of Open MPI");
    }
    page_ = CollectivePage::make();
    launch({"mpirun", "-n", absl::StrCat(ranks), "--oversubscribe", "--allow-run-as-root", program, address,
            page_.path()});
    ranks_.assign(static_cast<std::size_t>(ranks), -1);
    const absl::Time deadline = absl::Now() + kTimeout;
    for (int i = 0; i < ranks; ++i) {
      wait_readable(listener, deadline);
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) fail("cannot accept a rank of Open MPI");
      int64_t rank = -1;
      get(fd, &rank, sizeof rank, deadline);
      if (rank < 0 || rank >= ranks) {
        throw std::runtime_error(
            absl::StrCat("invalid rank of Open MPI: got ", rank, ", expected less than ", ranks));
      }
      ranks_[static_cast<std::size_t>(rank)] = fd;
    }
    close(listener);
  }

  // Starts mpirun. It is terminated when this process ends; its ranks end when their sockets are closed.
  static void launch(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) fail("cannot start mpirun");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(1);
      const int null = open("/dev/null", O_RDONLY);
      dup2(null, STDIN_FILENO);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
  }

  static void put(int fd, const std::string& data) {
    if (send(fd, data.data(), data.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(data.size())) {
      fail("lost the connection to a rank of Open MPI");
    }
  }

  static void wait_readable(int fd, absl::Time deadline) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    const int64_t left_ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    errno = 0;
    if (poll(&entry, 1, static_cast<int>(left_ms)) != 1) fail("the ranks of Open MPI did not answer in time");
  }

  static void get(int fd, void* data, std::size_t size, absl::Time deadline) {
    for (std::size_t got = 0; got < size;) {
      wait_readable(fd, deadline);
      errno = 0;
      const ssize_t n = recv(fd, static_cast<char*>(data) + got, size - got, 0);
      if (n <= 0) fail("lost the connection to a rank of Open MPI");
      got += static_cast<std::size_t>(n);
    }
  }

  CollectivePage page_;
  // The socket of each rank.
  std::vector<int> ranks_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_openmpi_peer() { return std::make_unique<OpenMpiPeer>(); }

}  // namespace gradwire::bench
