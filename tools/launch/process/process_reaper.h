#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/process/worker_process.h"

namespace gradwire::tools {

// The messages between the launcher and its reaper, over a stream socket: one request, then one reply. Both
// ends are the same program, so the structs are sent as they are in memory.
struct ReaperRequest {
  enum class Kind : int32_t {
    kStart,        // With the three standard descriptors; packed_start() follows.
    kEnding,       // How `worker` ended.
    kSignalGroup,  // Send `signal` to `worker` and its group.
    kEndRest,      // Send `signal` to the processes that workers left behind.
  };
  Kind kind = Kind::kStart;
  pid_t worker = 0;
  int32_t signal = 0;
  uint64_t packed_bytes = 0;  // Size of the bytes that follow.
};

struct ReaperReply {
  StartedProcess started;        // For kStart; the worker's pidfd is sent with it.
  int watch_error = 0;           // For kStart: the errno if no pidfd could be opened.
  std::optional<Ending> ending;  // For kEnding; the launcher adds the time.
  bool nothing_left = false;     // For kEndRest.
};
static_assert(std::is_trivially_copyable_v<ReaperReply>);

// More than the size of arguments and environment that any system allows.
inline constexpr size_t kMaxPackedBytes = size_t{16} << 20;

// Serializes a WorkerStart without its descriptors, and parses the result (nullopt if malformed).
std::string packed_start(const WorkerStart& start);
std::optional<WorkerStart> unpacked_start(const std::string& packed);

// Sends or receives all bytes, with at most 4 descriptors. Returns false if the other end is closed. Does not
// raise SIGPIPE.
bool send_all(int socket, const void* data, size_t size, const std::vector<int>& descriptors = {});
bool receive_all(int socket, void* data, size_t size, std::vector<Descriptor>* descriptors = nullptr);

// Options of the reaper.
struct ReaperOptions {
  // Limits the wait for one answer, and for the end of the reaper; must be positive. By default longer than
  // any request takes; the slowest executes a program from a remote file system.
  absl::Duration timeout = absl::Seconds(60);
  // Folders that the reaper removes at its end, after all workers have ended. Empty names are left out.
  std::vector<std::string> folders;
};

// The reaper: a process between the launcher and its workers. It starts the workers and is their parent. No
// descendant escapes it, not even a process in a session of its own. If the launcher is killed with SIGKILL,
// the reaper kills all its descendants and then ends.
//
// If the reaper itself is killed, the workers die with it, and the launcher ends itself with SIGKILL, because
// a worker sees the reaper as its launcher. Only in this case may processes that workers have started
// survive. A reaper that does not answer, because it was stopped, is killed after the timeout, with the same
// consequences.
//
// Not thread-safe; one per process. Owns the reaper process: the destructor lets it kill its remaining
// descendants, and waits for its end.
class ProcessReaper {
 public:
  struct Started {
    pid_t pid;
    Descriptor pid_fd;
  };

  // Forks the reaper. Must be called while the process has one thread, because the child runs more than exec.
  // Unavailable if the system cannot create the process.
  static absl::StatusOr<ProcessReaper> start(const ReaperOptions& options = {});

  ProcessReaper(ProcessReaper&& other) noexcept;
  ProcessReaper& operator=(ProcessReaper&&) = delete;
  ~ProcessReaper();

  // Starts a worker, which leads a process group of its own. Returns when the program runs. Unavailable,
  // which names the program, if it cannot be executed; ResourceExhausted, with the limit, if the system has
  // no process or descriptor left for it.
  absl::StatusOr<Started> start_worker(const WorkerStart& start);

  // Returns how a worker ended, or nullopt while it runs. After it has returned the ending, the worker is
  // forgotten.
  std::optional<Ending> ending(pid_t worker);

  // Sends a signal, and then SIGCONT, to a worker and its whole group. Does nothing when the worker has ended
  // and its group is empty.
  void signal_group(pid_t worker, int signal);

  // Sends `signal` (SIGTERM or SIGKILL) to the processes that ended workers have left behind: orphans, which
  // are children of the reaper. Each gets SIGTERM only once, from this or from signal_group(). When a process
  // exits, its orphans are reparented to the reaper. So call this again until it returns true: then no
  // descendants are left, except processes of another user, which cannot be ended.
  bool end_rest(int signal);

 private:
  ProcessReaper(Descriptor socket, pid_t pid, absl::Duration timeout)
      : socket_(std::move(socket)), pid_(pid), timeout_(timeout) {}

  ReaperReply call(ReaperRequest request, const std::string& packed = "",
                   const std::vector<int>& descriptors = {}, std::vector<Descriptor>* received = nullptr);

  Descriptor socket_;
  pid_t pid_;
  const absl::Duration timeout_;
};

}  // namespace gradwire::tools
