#include "gradwire/tools/launch/process/reaper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

// For what was killed to end, and for what that leaves to come up, while the launcher waits for it: a process
// that hangs in the kernel is not waited for without end.
constexpr absl::Duration kTimeout = absl::Seconds(5);
// A process whose parent was not this one's child comes up without a sign.
constexpr int kLookAgainMilliseconds = 10;
constexpr int kLookSeldomMilliseconds = 200;

// Of this process, whatever else a number could mean where /proc tells of another namespace.
bool is_child(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

std::vector<pid_t> children() {
  std::string text;
  // A system without this file keeps what has left its worker's group.
  const Descriptor file(open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC));
  char part[4096];
  for (ssize_t got; file.valid() && (got = read_retrying(file.get(), part, sizeof(part))) > 0;)
    text.append(part, got);
  std::vector<pid_t> found;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    if (pid_t pid = 0; absl::SimpleAtoi(word, &pid) && is_child(pid)) found.push_back(pid);
  }
  return found;
}

// And SIGCONT after it, since a stopped process would not notice. `process` and a signal of 0 as kill(2) has
// them. False for what is another user's.
bool send(pid_t process, int signal) {
  if (kill(process, signal) != 0) return errno != EPERM;
  if (signal != 0 && signal != SIGKILL) kill(process, SIGCONT);
  return true;
}

}  // namespace

void ReaperProcess::run() {
  // A group of its own: a signal to the launcher's group, SIGKILL included, leaves the reaper to do its
  // work.
  setpgid(0, 0);
  prctl(PR_SET_NAME, "gradwire-guard");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Ignored, it would make the kernel forget how workers ended.
  signal(SIGCHLD, SIG_DFL);
  sigset_t signals;
  sigfillset(&signals);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  child_ended_ = Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  // Whoever reads the launcher's output to its end must not wait for the reaper.
  const Descriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int stream = 0; stream <= 2; ++stream) dup2(null.get(), stream);

  while (true) {
    pollfd events[] = {{.fd = socket_.get(), .events = POLLIN}, {.fd = child_ended_.get(), .events = POLLIN}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) break;
    if (events[1].revents != 0) {
      forget_child_signals();
      reap();
    }
    if (events[0].revents != 0 && !serve_request()) break;
  }
  kill_all();
}

bool ReaperProcess::serve_request() {
  ReaperRequest request;
  std::vector<Descriptor> received;
  if (!receive_all(socket_.get(), &request, sizeof(request), &received)) return false;
  ReaperReply reply;
  std::vector<int> descriptors;
  switch (request.kind) {
    case ReaperRequest::Kind::kStart: {
      if (request.packed_bytes > kMaxPackedBytes || received.size() != 3) return false;
      std::string packed(request.packed_bytes, '\0');
      if (!receive_all(socket_.get(), packed.data(), packed.size())) return false;
      std::optional<WorkerStart> start = unpacked_start(packed);
      if (!start) return false;
      start->stdin_fd = received[0].get();
      start->stdout_fd = received[1].get();
      start->stderr_fd = received[2].get();
      start_worker(*start, reply, descriptors);
      break;
    }
    case ReaperRequest::Kind::kEnding: {
      reap();
      const auto worker = workers_.find(request.worker);
      if (worker == workers_.end() || !worker->second) break;
      reply.ending = worker->second;
      workers_.erase(worker);
      break;
    }
    case ReaperRequest::Kind::kSignalGroup:
      signal_group(request.worker, request.signal);
      break;
    case ReaperRequest::Kind::kEndRest:
      reply.nothing_left = reap() || !signal_rest(request.signal) || reap();
      break;
  }
  const bool sent = send_all(socket_.get(), &reply, sizeof(reply), descriptors);
  pid_fd_.reset();
  return sent;
}

void ReaperProcess::start_worker(const WorkerStart& start, ReaperReply& reply,
                                 std::vector<int>& descriptors) {
  reply.started = start_process(start);
  if (reply.started.pid == 0) return;
  workers_[reply.started.pid] = std::nullopt;
  asked_groups_.erase(reply.started.pid);
  // glibc 2.36 declares pidfd_open for C alone.
  pid_fd_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, reply.started.pid, 0)));
  if (pid_fd_.valid()) descriptors.push_back(pid_fd_.get());
}

bool ReaperProcess::running(pid_t child) const {
  const auto worker = workers_.find(child);
  return worker != workers_.end() && !worker->second;
}

void ReaperProcess::signal_group(pid_t worker, int signal) {
  if (!running(worker)) {
    // Once the worker is reaped its number, the group's too, may become another's, unless a child is still in
    // the group.
    const std::vector<pid_t> all = children();
    if (std::none_of(all.begin(), all.end(), [worker](pid_t child) { return getpgid(child) == worker; }))
      return;
  }
  if (signal == SIGTERM) asked_groups_.insert(worker);
  send(-worker, signal);
  if (running(worker) && getpgid(worker) != worker) send(worker, signal);
}

bool ReaperProcess::signal_rest(int signal) {
  const std::vector<pid_t> all = children();
  bool any = all.empty();  // the list may lack what came while it was read
  for (pid_t child : all) {
    if (running(child)) {
      any = send(child, 0) || any;
      continue;
    }
    const bool asked =
        signal != SIGKILL && (asked_groups_.count(getpgid(child)) > 0 || !asked_.insert(child).second);
    any = send(child, asked ? 0 : signal) || any;
  }
  return any;
}

void ReaperProcess::kill_all() {
  for (const auto& [worker, end] : workers_) signal_group(worker, SIGKILL);
  const absl::Time deadline = absl::Now() + kTimeout;
  // Without a launcher nobody waits for the reaper, and nobody else would end what a worker leaves that
  // dies slowly.
  while (!reap() && signal_rest(SIGKILL)) {
    const bool late = absl::Now() >= deadline;
    if (late && getppid() == launcher_) break;
    pollfd ended{.fd = child_ended_.get(), .events = POLLIN};
    poll(&ended, 1, late ? kLookSeldomMilliseconds : kLookAgainMilliseconds);
    forget_child_signals();
  }
}

void ReaperProcess::forget_child_signals() {
  signalfd_siginfo info;
  while (read_retrying(child_ended_.get(), &info, sizeof(info)) > 0) {
  }
}

bool ReaperProcess::reap() {
  while (true) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) break;
    if (info.si_pid == 0) return false;
    asked_.erase(info.si_pid);
    const auto worker = workers_.find(info.si_pid);
    if (worker == workers_.end() || worker->second) continue;
    worker->second.emplace();
    (info.si_code == CLD_EXITED ? worker->second->code : worker->second->signal) = info.si_status;
  }
  asked_groups_.clear();
  return true;
}

}  // namespace gradwire::tools
