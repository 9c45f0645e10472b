#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/process/reaper_messages.h"

namespace gradwire::tools {

// The reaper's own side: what runs in it.
//
// It is the parent of the workers and a subreaper, so a process that loses its parent anywhere below a
// worker, whatever session or group it has gone to, becomes its child: without children it has no
// descendants. It signals its own children alone. Their numbers stay taken until it reaps them itself, so a
// signal cannot meet a stranger; what is deeper comes up when what is above has ended.
//
// One thread.
class ReaperProcess {
 public:
  explicit ReaperProcess(Descriptor socket) : socket_(std::move(socket)) {}

  // Serves the launcher until that is gone, then kills what is left.
  void run();

 private:
  // Whether the launcher is still there.
  bool serve_request();
  void start_worker(const WorkerStart& start, ReaperReply& reply, std::vector<int>& descriptors);
  bool running(pid_t child) const;
  void signal_group(pid_t worker, int signal);
  // To children that are not running workers. Other signals than SIGKILL only once to each, and not to those
  // whose whole group was asked to end. False when only processes of other users are left, which cannot be
  // ended.
  bool signal_rest(int signal);
  void kill_all();
  void forget_child_signals();
  // Takes in the children that have ended. Whether there is none left.
  bool reap();

  const pid_t launcher_ = getppid();
  Descriptor socket_;
  Descriptor child_ended_;  // a signalfd
  Descriptor pid_fd_;       // of the worker that was started last, until the launcher has it
  // Those whose end the launcher has not asked for; nothing while they run.
  std::map<pid_t, std::optional<Ending>> workers_;
  // Children, not yet reaped, and groups that SIGTERM was sent to.
  std::set<pid_t> asked_;
  std::set<pid_t> asked_groups_;
};

}  // namespace gradwire::tools
