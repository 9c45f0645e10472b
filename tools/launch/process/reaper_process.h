#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/process/reaper_messages.h"

namespace gradwire::tools {

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

}  // namespace gradwire::tools
