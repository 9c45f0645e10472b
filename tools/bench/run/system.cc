#include "gradwire/tools/bench/run/system.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace gradwire::bench {
namespace {

constexpr int kChannelFd = 3;

// Returns the last three lines of a file, joined to one line.
std::string tail(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return "";
  constexpr off_t kMaxBytes = 2000;
  std::string text(static_cast<std::size_t>(std::min(about.st_size, kMaxBytes)), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), about.st_size - static_cast<off_t>(text.size()));
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  std::string result;
  for (std::size_t i = lines.size() > 3 ? lines.size() - 3 : 0; i < lines.size(); ++i) {
    absl::StrAppend(&result, result.empty() ? "" : " | ", lines[i].substr(0, 300));
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<System>> System::start(const Options& options) {
  std::unique_ptr<System> system(new System(options));
  for (int rank = 0; rank < options.members; ++rank) {
    if (absl::Status status = system->spawn(rank); !status.ok()) return status;
  }
  std::vector<Order> orders(static_cast<std::size_t>(options.members));
  for (int rank = 0; rank < options.members; ++rank) {
    Order& order = orders[static_cast<std::size_t>(rank)];
    order.kind = Order::Kind::kListen;
    order.endpoint = {.rank = rank, .size = options.members, .transport = options.transport};
    if (options.network != nullptr) order.endpoint.host = options.network->left_address();
  }
  auto answers = system->send_orders(orders, 0, options.join_timeout);
  if (!answers.ok()) return answers.status();
  std::vector<std::string> addresses;
  for (Answer& answer : *answers) addresses.push_back(std::move(answer.address));
  for (Order& order : orders) {
    order.kind = Order::Kind::kJoin;
    order.endpoint.addresses = addresses;
  }
  answers = system->send_orders(std::move(orders), 0, options.join_timeout);
  if (!answers.ok()) return answers.status();
  if (options.stop_between) system->signal_all(SIGSTOP);
  return system;
}

System::~System() {
  signal_all(SIGKILL);
  for (const Member& member : members_) {
    if (member.pid > 0) waitpid(member.pid, nullptr, 0);
    if (member.log_fd >= 0) close(member.log_fd);
  }
}

absl::Status System::spawn(int rank) {
  const int log_fd = memfd_create("bench_log", MFD_CLOEXEC);
  int ends[2];
  if (log_fd < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot start a bench process: ", std::strerror(errno)));
  }
  const std::string role = absl::StrCat("--participant=", options_.role);
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, const_cast<char*>(role.c_str()), nullptr};
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int i = 0; i < options_.cores; ++i) CPU_SET(i, &cores);

  int network_fd = -1;
  if (options_.network != nullptr) {
    network_fd = rank == 1 ? options_.network->right_fd() : options_.network->left_fd();
  }
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  if (options_.descriptors > 0) {
    descriptors.rlim_cur = std::min(descriptors.rlim_max, static_cast<rlim_t>(options_.descriptors));
  }

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // The parent may have several threads, so only async-signal-safe functions may be called between fork and
    // exec.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (options_.cores > 0) sched_setaffinity(0, sizeof cores, &cores);
    if (network_fd >= 0 && setns(network_fd, CLONE_NEWNET) != 0) _exit(126);
    setrlimit(RLIMIT_NOFILE, &descriptors);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    // dup2() of a descriptor onto itself would not clear the close-on-exec flag.
    if (ends[1] == kChannelFd) {
      fcntl(kChannelFd, F_SETFD, 0);
    } else {
      dup2(ends[1], kChannelFd);
    }
    execv(program, arguments);
    _exit(127);
  }
  close(ends[1]);
  members_.push_back({.pid = pid, .log_fd = log_fd, .channel = std::make_unique<Channel>(ends[0])});
  if (pid < 0)
    return absl::UnavailableError(absl::StrCat("cannot fork a bench process: ", std::strerror(errno)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Answer>> System::send_orders(std::vector<Order> orders, std::size_t first,
                                                        absl::Duration timeout) {
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (absl::Status status = members_[first + i].channel->send(orders[i]); !status.ok()) {
      return failure(first + i, status);
    }
  }
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    auto answer =
        members_[first + i].channel->receive_answer(std::max(absl::ZeroDuration(), deadline - absl::Now()));
    if (!answer.ok()) return failure(first + i, answer.status());
    if (!answer->error.empty()) return failure(first + i, absl::UnknownError(answer->error));
    answers.push_back(*std::move(answer));
  }
  return answers;
}

absl::StatusOr<double> System::usage() {
  const auto answers = send_orders(std::vector<Order>(members_.size(), Order{.kind = Order::Kind::kUsage}), 0,
                                   options_.timeout);
  if (!answers.ok()) return answers.status();
  double total = 0;
  for (const Answer& answer : *answers) total += answer.cpu_us;
  return total;
}

void System::signal_all(int signal) const {
  for (const Member& member : members_) {
    if (member.pid > 0) kill(member.pid, signal);
  }
}

absl::StatusOr<Round> System::run(const Task& task, int callers) {
  if (options_.stop_between) signal_all(SIGCONT);
  auto round = run_awake(task, callers);
  if (options_.stop_between) signal_all(SIGSTOP);
  return round;
}

absl::StatusOr<Round> System::run_last_task(const Task& task) {
  if (options_.stop_between) signal_all(SIGCONT);
  return run_members(task, members_.size() - 1);
}

absl::StatusOr<double> System::idle_cpu_us(absl::Duration period) {
  if (options_.stop_between) signal_all(SIGCONT);
  auto cpu_us = idle_awake(period);
  if (options_.stop_between) signal_all(SIGSTOP);
  return cpu_us;
}

absl::StatusOr<Round> System::run_awake(const Task& task, int callers) {
  const auto before = usage();
  if (!before.ok()) return before.status();
  const auto running = static_cast<std::size_t>(callers);
  auto round = run_members(task, running == 0 || running > members_.size() ? 0 : members_.size() - running);
  if (!round.ok()) return round.status();
  const auto after = usage();
  if (!after.ok()) return after.status();
  round->cpu_us = *after - *before;
  return round;
}

absl::StatusOr<Round> System::run_members(const Task& task, std::size_t first) {
  const std::vector<Order> orders(members_.size() - first, Order{.kind = Order::Kind::kRun, .task = task});
  auto answers = send_orders(orders, first, options_.timeout + 4 * absl::Seconds(task.seconds));
  if (!answers.ok()) return answers.status();
  Round round;
  for (Answer& answer : *answers) round.members.push_back(std::move(answer.measurement));
  return round;
}

absl::StatusOr<double> System::idle_awake(absl::Duration period) {
  // Wait until work that an earlier case left has been done.
  absl::SleepFor(absl::Milliseconds(300));
  const auto before = usage();
  if (!before.ok()) return before.status();
  absl::SleepFor(period);
  const auto after = usage();
  if (!after.ok()) return after.status();
  return *after - *before;
}

absl::Status System::failure(std::size_t rank, const absl::Status& status) const {
  std::string message = absl::StrCat(options_.role, " over ", options_.transport, ", member ", rank, ": ");
  // Use only the first line: torch's messages contain a stack trace.
  const absl::string_view first_line = status.message().substr(0, status.message().find('\n'));
  absl::StrAppend(&message, first_line.substr(0, 400));
  // If a member has ended, the errors of the others are consequences, so report its end.
  const std::string death = first_death();
  const std::string printed = tail(members_[rank].log_fd);
  if (!death.empty()) {
    absl::StrAppend(&message, "; ", death);
  } else if (!printed.empty()) {
    absl::StrAppend(&message, "; it printed: ", printed);
  }
  return absl::Status(status.code(), message);
}

std::string System::first_death() const {
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    siginfo_t about{};
    const Member& member = members_[rank];
    // WNOWAIT: the destructor still has to wait for the process.
    if (member.pid <= 0 ||
        waitid(P_PID, static_cast<id_t>(member.pid), &about, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        about.si_pid == 0) {
      continue;
    }
    std::string death = absl::StrCat("member ", rank, " ended with ",
                                     about.si_code == CLD_EXITED ? "status " : "signal ", about.si_status);
    const std::string printed = tail(member.log_fd);
    if (!printed.empty()) absl::StrAppend(&death, " and had printed: ", printed);
    return death;
  }
  return "";
}

}  // namespace gradwire::bench
