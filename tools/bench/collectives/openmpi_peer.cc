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

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(errno != 0 ? absl::StrCat(what, ": ", std::strerror(errno)) : what);
}

// Runs to its end; what it prints goes where this process prints.
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

// A folder that goes with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char path[] = "/tmp/gradwire_bench.XXXXXX";
    if (mkdtemp(path) == nullptr) fail("mkdtemp");
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

class OpenMpiPeer final : public Participant {
 public:
  std::string listen(const Place&) override {
    // Participants end without destructors, so nothing may be left in the file system: program and socket are
    // gone as soon as the ranks run.
    if (run_program({"mpicc", "--version"}) != 0) {
      throw std::runtime_error(
          "there is no mpicc: install libopenmpi-dev and openmpi-bin (tools/setup --mpi)");
    }
    return "";
  }

  Measurement run(const Task& task) override {
    collective_work work = {};
    if (collective_parse(task.case_name.c_str(), &work) == 0)
      throw std::invalid_argument("no case " + task.case_name);
    if (ranks_.empty()) start(work.ranks);
    if (static_cast<int>(ranks_.size()) != work.ranks)
      throw std::invalid_argument("started for another number of ranks");
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
      throw std::runtime_error("mpicc could not compile the peer");
    }
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    address.copy(name.sun_path, sizeof name.sun_path - 1);
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 ||
        ::listen(listener, ranks) != 0) {
      fail("a socket for mpirun's processes");
    }
    page_ = CollectivePage::make();
    launch({"mpirun", "-n", absl::StrCat(ranks), "--oversubscribe", "--allow-run-as-root", program, address,
            page_.path()});
    ranks_.assign(static_cast<std::size_t>(ranks), -1);
    const absl::Time deadline = absl::Now() + kTimeout;
    for (int i = 0; i < ranks; ++i) {
      await(listener, deadline);
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) fail("accept");
      int64_t rank = -1;
      get(fd, &rank, sizeof rank, deadline);
      if (rank < 0 || rank >= ranks) throw std::runtime_error("a rank that cannot be");
      ranks_[static_cast<std::size_t>(rank)] = fd;
    }
    close(listener);
  }

  // It ends when this process does; its ranks end when their sockets do.
  static void launch(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) fail("fork");
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
      fail("a rank of Open MPI is gone");
    }
  }

  static void await(int fd, absl::Time deadline) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    errno = 0;
    if (poll(&entry, 1, static_cast<int>(left)) != 1) fail("no answer from Open MPI's ranks");
  }

  static void get(int fd, void* data, std::size_t size, absl::Time deadline) {
    for (std::size_t got = 0; got < size;) {
      await(fd, deadline);
      errno = 0;
      const ssize_t n = recv(fd, static_cast<char*>(data) + got, size - got, 0);
      if (n <= 0) fail("a rank of Open MPI is gone");
      got += static_cast<std::size_t>(n);
    }
  }

  CollectivePage page_;
  // By rank.
  std::vector<int> ranks_;
};

}  // namespace

std::unique_ptr<Participant> make_openmpi_peer() { return std::make_unique<OpenMpiPeer>(); }

}  // namespace gradwire::bench
