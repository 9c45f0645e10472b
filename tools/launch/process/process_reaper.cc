#include "gradwire/tools/launch/process/process_reaper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {

// Messages between the launcher and the reaper: a ReaperRequest or a ReaperReply, as it is in memory. After
// a request to start a worker follow the packed strings: Head, then path, arguments and environment, each
// ended by a zero byte.
namespace {

constexpr size_t kMaxDescriptors = 4;

struct Head {
  sigset_t signal_mask;
  bool ignore_sigpipe;
  uint64_t arguments;
};

void append(std::string& packed, const std::string& text) { packed.append(text.c_str(), text.size() + 1); }

}  // namespace

std::string packed_start(const WorkerStart& start) {
  Head head;
  memset(&head, 0, sizeof(head));
  head.signal_mask = start.signal_mask;
  head.ignore_sigpipe = start.ignore_sigpipe;
  head.arguments = start.command.argv.size();
  std::string packed(reinterpret_cast<const char*>(&head), sizeof(head));
  append(packed, start.command.path);
  for (const std::string& argument : start.command.argv) append(packed, argument);
  for (const std::string& variable : start.environment) append(packed, variable);
  return packed;
}

// The reaper is a fork of the launcher, so both have the same Head. The checks are against a message that
// was cut, not against a hostile peer.
std::optional<WorkerStart> unpacked_start(const std::string& packed) {
  Head head;
  if (packed.size() <= sizeof(head) || packed.back() != '\0') return std::nullopt;
  memcpy(&head, packed.data(), sizeof(head));
  WorkerStart start{.signal_mask = head.signal_mask, .ignore_sigpipe = head.ignore_sigpipe};
  absl::string_view rest(packed);
  rest.remove_prefix(sizeof(head));
  for (uint64_t number = 0; !rest.empty(); ++number) {
    std::string text(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(text.size() + 1);
    if (number == 0) {
      start.command.path = std::move(text);
    } else {
      (number <= head.arguments ? start.command.argv : start.environment).push_back(std::move(text));
    }
  }
  return start.command.argv.size() == head.arguments ? std::make_optional(std::move(start)) : std::nullopt;
}

// The descriptors travel with the first part. A part that is sent later, after a short write, must not carry
// them again.
bool send_all(int socket, const void* data, size_t size, const std::vector<int>& descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  const size_t descriptor_bytes = std::min(descriptors.size(), kMaxDescriptors) * sizeof(int);
  bool first = true;
  while (size > 0) {
    iovec part{.iov_base = const_cast<void*>(data), .iov_len = size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (first && descriptor_bytes > 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptor_bytes);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(descriptor_bytes);
      memcpy(CMSG_DATA(rights), descriptors.data(), descriptor_bytes);
    }
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    first = false;
    data = static_cast<const char*>(data) + sent;
    size -= sent;
  }
  return true;
}

// Every descriptor that arrives is owned at once, so that none leaks if it is unexpected or if the next read
// fails.
bool receive_all(int socket, void* data, size_t size, std::vector<Descriptor>* descriptors) {
  while (size > 0) {
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
    iovec part{.iov_base = data, .iov_len = size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int descriptor;
        memcpy(&descriptor, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
        Descriptor received(descriptor);
        if (descriptors != nullptr) descriptors->push_back(std::move(received));
      }
    }
    data = static_cast<char*>(data) + got;
    size -= got;
  }
  return true;
}

namespace {

// The code that runs in the reaper process.
//
// The reaper is the parent of the workers and a subreaper. So any descendant of a worker that loses its
// parent becomes a child of the reaper, whatever its session or group. If the reaper has no children, it has
// no descendants. It sends signals only to its own children: their pids cannot be reused before the reaper
// reaps them, so a signal cannot hit an unrelated process. Deeper descendants become children when their
// parents have ended.
//
// Single-threaded.
class ReaperProcess {
 public:
  // Removes `folders`, except empty names, at the end.
  ReaperProcess(Descriptor socket, std::vector<std::string> folders)
      : socket_(std::move(socket)), folders_(std::move(folders)) {}

  // Serves the launcher until it has ended, then kills the remaining descendants and removes the folders.
  void run();

 private:
  // Serves one request. Returns false if the launcher has ended.
  bool serve_request();
  void start_worker(const WorkerStart& start, ReaperReply& reply, std::vector<int>& descriptors);
  bool running(pid_t child) const;
  void signal_group(pid_t worker, int signal);
  // Sends a signal to all children that are not running workers. A signal other than SIGKILL is sent only
  // once to each child, and not if its whole group has got it already. Returns false if only processes of
  // other users are left, which cannot be ended.
  bool signal_rest(int signal);
  void kill_all();
  void drain_child_signals();
  // Reaps the children that have ended. Returns true if no children are left.
  bool reap();

  const pid_t launcher_ = getppid();
  Descriptor socket_;
  const std::vector<std::string> folders_;
  Descriptor child_ended_;  // A signalfd for SIGCHLD.
  Descriptor pid_fd_;       // pidfd of the last started worker, until it is sent.
  // The workers whose ending the launcher has not read; nullopt while they run.
  std::map<pid_t, std::optional<Ending>> workers_;
  // Unreaped children, and groups, that have got SIGTERM.
  std::set<pid_t> signalled_;
  std::set<pid_t> signalled_groups_;
};

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
      if (request.packed_bytes > kMaxPackedBytes) return false;
      std::string packed(request.packed_bytes, '\0');
      if (!receive_all(socket_.get(), packed.data(), packed.size())) return false;
      std::optional<WorkerStart> start = unpacked_start(packed);
      if (!start) return false;
      if (received.size() != 3) {
        // The launcher sends three. The kernel has dropped those for which this process had no number free.
        reply.started.fork_error = EMFILE;
        break;
      }
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
  if (pid_fd_.valid()) {
    descriptors.push_back(pid_fd_.get());
  } else {
    reply.watch_error = errno;
  }
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

absl::Status execute_error(const WorkerStart& start, int error) {
  const char* hint = error == ENOEXEC ? " (a script needs a first line such as #!/bin/sh)" : "";
  return absl::UnavailableError(
      absl::StrCat(errno_status(absl::StrCat("cannot execute ", start.command.path), error).message(), hint));
}

// Whether the child ends in time. Does not reap it.
bool ends_within(pid_t child, absl::Duration time) {
  const absl::Time deadline = absl::Now() + time;
  const Descriptor watched(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  while (true) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == child)
      return true;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    // Without a pidfd, poll every 10 ms.
    pollfd event{.fd = watched.get(), .events = POLLIN};
    const absl::Duration at_most = watched.valid() ? left : std::min(left, absl::Milliseconds(10));
    poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(at_most, absl::Milliseconds(1)))));
  }
}

}  // namespace

// The socket pair is the lifeline in both directions. If the launcher dies, the reaper reads the end of the
// socket and kills everything. For this the child must close its copy of the launcher's end. If the reaper
// dies, the launcher's next call() fails.
absl::StatusOr<ProcessReaper> ProcessReaper::start(const ReaperOptions& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_status("cannot create a socket", errno);
  Descriptor launcher_end(ends[0]);
  Descriptor reaper_end(ends[1]);
  const timeval at_most = absl::ToTimeval(options.timeout);
  if (setsockopt(launcher_end.get(), SOL_SOCKET, SO_RCVTIMEO, &at_most, sizeof(at_most)) != 0 ||
      setsockopt(launcher_end.get(), SOL_SOCKET, SO_SNDTIMEO, &at_most, sizeof(at_most)) != 0) {
    return errno_status("cannot set the timeout of a socket", errno);
  }
  const pid_t pid = fork_with_objects();
  if (pid < 0) return errno_status("cannot start a process", errno);
  if (pid == 0) {
    launcher_end.reset();
    ReaperProcess(std::move(reaper_end), options.folders).run();
    _exit(0);
  }
  return ProcessReaper(std::move(launcher_end), pid, options.timeout);
}

ProcessReaper::ProcessReaper(ProcessReaper&& other) noexcept
    : socket_(std::move(other.socket_)), pid_(std::exchange(other.pid_, 0)), timeout_(other.timeout_) {}

ProcessReaper::~ProcessReaper() {
  // Shut the socket down: a forked process may have a copy of it.
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);
  if (pid_ <= 0) return;
  // A stopped reaper would not notice the end of the socket.
  kill(pid_, SIGCONT);
  if (!ends_within(pid_, timeout_)) kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// The reaper has no standard streams of its own any more, so all three descriptors are sent with each
// request, also those that the worker inherits from the launcher. The reply has the pidfd of the worker, by
// which the launcher's loop notices its end.
absl::StatusOr<ProcessReaper::Started> ProcessReaper::start_worker(const WorkerStart& start) {
  const std::string packed = packed_start(start);
  if (packed.size() > kMaxPackedBytes) return execute_error(start, E2BIG);
  const auto or_own = [](int descriptor, int own) { return descriptor >= 0 ? descriptor : own; };
  std::vector<Descriptor> received;
  const ReaperReply reply =
      call({.kind = ReaperRequest::Kind::kStart, .packed_bytes = packed.size()}, packed,
           {or_own(start.stdin_fd, STDIN_FILENO), or_own(start.stdout_fd, STDOUT_FILENO),
            or_own(start.stderr_fd, STDERR_FILENO)},
           &received);
  if (reply.started.execute_error != 0) return execute_error(start, reply.started.execute_error);
  if (reply.started.pid == 0) {
    return system_status("cannot start a process", reply.started.fork_error, Resource::kThread);
  }
  if (received.size() != 1) {
    signal_group(reply.started.pid, SIGKILL);
    if (reply.watch_error == ENOSYS) {
      return absl::UnavailableError(
          "cannot watch a worker's process: pidfd_open() failed; Linux 5.3 or later is required");
    }
    // 0: it was sent, and this process had no descriptor free for it.
    return system_status("cannot watch a worker's process",
                         reply.watch_error != 0 ? reply.watch_error : EMFILE);
  }
  return Started{.pid = reply.started.pid, .pid_fd = std::move(received.front())};
}

std::optional<Ending> ProcessReaper::ending(pid_t worker) {
  std::optional<Ending> ending = call({.kind = ReaperRequest::Kind::kEnding, .worker = worker}).ending;
  if (ending) ending->time = absl::Now();
  return ending;
}

void ProcessReaper::signal_group(pid_t worker, int signal) {
  call({.kind = ReaperRequest::Kind::kSignalGroup, .worker = worker, .signal = signal});
}

bool ProcessReaper::end_rest(int signal) {
  return call({.kind = ReaperRequest::Kind::kEndRest, .signal = signal}).nothing_left;
}

// One request and one reply at a time. If the exchange fails, the launcher cannot watch or end the workers
// any more. They die with the reaper (PR_SET_PDEATHSIG), and the launcher ends as if it had been killed
// itself. A reaper that does not answer is killed first: otherwise it could go on after the launcher.
ReaperReply ProcessReaper::call(ReaperRequest request, const std::string& packed,
                                const std::vector<int>& descriptors, std::vector<Descriptor>* received) {
  ReaperReply reply;
  errno = 0;
  if (send_all(socket_.get(), &request, sizeof(request), descriptors) &&
      send_all(socket_.get(), packed.data(), packed.size()) &&
      receive_all(socket_.get(), &reply, sizeof(reply), received)) {
    return reply;
  }
  const bool timed_out = errno == EAGAIN || errno == EWOULDBLOCK;
  const std::string line =
      timed_out ? absl::StrCat("launch: the workers' parent process (", pid_, ") has not answered within ",
                               absl::FormatDuration(timeout_), "; it and the workers are killed\n")
                : "launch: the workers' parent process was killed\n";
  if (timed_out) kill(pid_, SIGKILL);
  write_all(STDERR_FILENO, line);
  raise(SIGKILL);
  // The first process of a container cannot kill itself with a signal.
  _exit(128 + SIGKILL);
}

}  // namespace gradwire::tools
