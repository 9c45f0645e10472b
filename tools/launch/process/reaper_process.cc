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
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

// Limit for the killed processes, and their orphans, to end while the launcher waits. A process that hangs in
// the kernel may never end.
constexpr absl::Duration kTimeout = absl::Seconds(5);
// Poll intervals: the reaper is not notified when an orphan is reparented to it.
constexpr int kPollMilliseconds = 10;
constexpr int kSlowPollMilliseconds = 200;

// Whether `pid` is a child of this process. A pid read from /proc may belong to another pid namespace.
bool is_child(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// Returns the children of this process, at best all of them: the kernel's list may lack those that are added
// while it is read.
std::vector<pid_t> children() {
  std::string text;
  // Without this file (an old kernel), processes that have left their worker's group are not found.
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

// Sends a signal, and then SIGCONT, because a stopped process would not act on the signal. `process` and a
// signal of 0 have the meaning of kill(2). Returns false if the process belongs to another user.
bool send(pid_t process, int signal) {
  if (kill(process, signal) != 0) return errno != EPERM;
  if (signal != 0 && signal != SIGKILL) kill(process, SIGCONT);
  return true;
}

}  // namespace

// 1. Become the subreaper in a group of its own, with all signals blocked: only SIGKILL ends it.
// 2. Serve requests and reap children until the socket ends, which means that the launcher has ended.
// 3. Kill all descendants.
// 4. Remove the folders, which they have used. The launcher cannot do this if it was killed.
void ReaperProcess::run() {
  // Use a process group of its own: the reaper must survive a signal to the launcher's group, even SIGKILL.
  setpgid(0, 0);
  prctl(PR_SET_NAME, "gradwire-reaper");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // If SIGCHLD were ignored, the kernel would not keep how workers ended.
  signal(SIGCHLD, SIG_DFL);
  sigset_t signals;
  sigfillset(&signals);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  child_ended_ = Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  // Close the launcher's output: a process that reads it to its end must not wait for the reaper.
  const Descriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int stream = 0; stream <= 2; ++stream) dup2(null.get(), stream);

  while (true) {
    pollfd events[] = {{.fd = socket_.get(), .events = POLLIN}, {.fd = child_ended_.get(), .events = POLLIN}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) break;
    if (events[1].revents != 0) {
      drain_child_signals();
      reap();
    }
    if (events[0].revents != 0 && !serve_request()) break;
  }
  kill_all();
  std::error_code ignored;
  for (const std::string& folder : folders_) {
    if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  }
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

// The worker is in `workers_` before its end can be noticed: reap() runs on this thread only. A new worker
// may get the pid of an old group, so the mark of that group is removed.
void ReaperProcess::start_worker(const WorkerStart& start, ReaperReply& reply,
                                 std::vector<int>& descriptors) {
  reply.started = start_process(start);
  if (reply.started.pid == 0) return;
  workers_[reply.started.pid] = std::nullopt;
  signalled_groups_.erase(reply.started.pid);
  // glibc 2.36 declares pidfd_open() only for C.
  pid_fd_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, reply.started.pid, 0)));
  if (pid_fd_.valid()) descriptors.push_back(pid_fd_.get());
}

bool ReaperProcess::running(pid_t child) const {
  const auto worker = workers_.find(child);
  return worker != workers_.end() && !worker->second;
}

void ReaperProcess::signal_group(pid_t worker, int signal) {
  if (!running(worker)) {
    // After the worker is reaped, its pid, which is also the group's id, may be reused, unless a child is
    // still in the group.
    const std::vector<pid_t> all = children();
    if (std::none_of(all.begin(), all.end(), [worker](pid_t child) { return getpgid(child) == worker; }))
      return;
  }
  if (signal == SIGTERM) signalled_groups_.insert(worker);
  send(-worker, signal);
  if (running(worker) && getpgid(worker) != worker) send(worker, signal);
}

// Running workers are left to signal_group(); here they only count. An orphan gets SIGTERM once, then time
// to clean up: the launcher calls this every few milliseconds.
bool ReaperProcess::signal_rest(int signal) {
  const std::vector<pid_t> all = children();
  bool any = all.empty();  // The list may lack children that were added while it was read.
  for (pid_t child : all) {
    if (running(child)) {
      any = send(child, 0) || any;
      continue;
    }
    const bool already = signal != SIGKILL &&
                         (signalled_groups_.count(getpgid(child)) > 0 || !signalled_.insert(child).second);
    any = send(child, already ? 0 : signal) || any;
  }
  return any;
}

// When a process is killed, its children become children of the reaper, which kills them in the next turn.
// So the loop ends when no child is left, when only processes of other users are left, or at the deadline if
// the launcher still waits.
void ReaperProcess::kill_all() {
  for (const auto& [worker, end] : workers_) signal_group(worker, SIGKILL);
  const absl::Time deadline = absl::Now() + kTimeout;
  // If the launcher has ended, continue without a limit: no process waits for the reaper, and no other
  // process would end orphans that die slowly.
  while (!reap() && signal_rest(SIGKILL)) {
    const bool late = absl::Now() >= deadline;
    if (late && getppid() == launcher_) break;
    pollfd ended{.fd = child_ended_.get(), .events = POLLIN};
    poll(&ended, 1, late ? kSlowPollMilliseconds : kPollMilliseconds);
    drain_child_signals();
  }
}

void ReaperProcess::drain_child_signals() {
  signalfd_siginfo info;
  while (read_retrying(child_ended_.get(), &info, sizeof(info)) > 0) {
  }
}

// Reaps in a loop, because the kernel merges SIGCHLD signals: one may stand for many ends. After waitid()
// has failed there is no child, so no mark of a group is valid any more.
bool ReaperProcess::reap() {
  while (true) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) break;
    if (info.si_pid == 0) return false;
    signalled_.erase(info.si_pid);
    const auto worker = workers_.find(info.si_pid);
    if (worker == workers_.end() || worker->second) continue;
    worker->second.emplace();
    (info.si_code == CLD_EXITED ? worker->second->code : worker->second->signal) = info.si_status;
  }
  signalled_groups_.clear();
  return true;
}

}  // namespace gradwire::tools
