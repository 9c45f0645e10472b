#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace chaos {

// The process of one worker, in a process group of its own, with a pipe in each direction. Its standard
// output and error go to a file.
//
// Not thread-safe. The destructor kills the process, if it still runs, and reaps it.
class WorkerProcess {
 public:
  WorkerProcess(const std::vector<std::string>& command, const std::string& output_path);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // Writes a line to descriptor 4 of the process.
  void send_line(const std::string& line);
  // Returns the next line that the process has written to its descriptor 3. Returns nullopt if no complete
  // line has arrived, or if no line can follow (output_closed()). Does not wait.
  std::optional<std::string> read_line();
  // Becomes readable when the process writes, and when it ends.
  int descriptor() const { return from_; }
  // Whether the process has closed its descriptor 3, and read_line() has returned all lines.
  bool output_closed() const { return output_closed_; }

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Waits for the end of the process and reaps it. Returns its exit code, or minus the number of the signal
  // that ended it. Returns nullopt if it has not ended after `timeout`.
  std::optional<int> wait(absl::Duration timeout);
  // Whether a process of its process group still exists. Call after wait().
  bool group_exists() const;

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  int exit_ = 0;
  int to_ = -1;
  int from_ = -1;
  std::string buffer_;
  bool output_closed_ = false;
};

}  // namespace chaos
