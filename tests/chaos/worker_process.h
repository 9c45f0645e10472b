#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace chaos {

// A worker of a run as a process, with a pipe in each direction, in a process group of its own. Its standard
// output and error go to a file.
//
// Not thread-safe. The destructor kills what is left and reaps it.
class WorkerProcess {
 public:
  WorkerProcess(const std::vector<std::string>& command, const std::string& output_path);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  void say(const std::string& line);
  // The next line that has come; none: nothing yet, or never again (see ended()).
  std::optional<std::string> line();
  // Readable when there is something for line(), or its process has ended.
  int descriptor() const { return from_; }
  // It has no more to say.
  bool ended() const { return ended_; }

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Reaps it, waiting at most so long; its exit code, or minus its signal; none if it does not end.
  std::optional<int> wait(absl::Duration timeout);
  // Whether anything is left of its process group. After wait().
  bool group_exists() const;

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  int exit_ = 0;
  int to_ = -1;
  int from_ = -1;
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace chaos
