#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/base/free_port.h"

namespace gradwire::tests {

// Prepares the environment for child processes that will be launchers, or other programs that are not tests.
void prepare_environment();

// The launcher as a process, as a user starts it. Its output goes to files, which are complete when it has
// ended. It describes its job (tools/running_jobs) in a folder of this test process, unless the environment
// says otherwise. Its workers inherit descriptor 9, a pipe. The test reads the lines that they write there as
// events. The end of the pipe means that the launcher, all workers and all their descendants have ended.
//
// Not thread-safe. The destructor kills the launcher if it still runs.
class LaunchProcess {
 public:
  // `network` is a descriptor of the network namespace to start it in, as for setns(2); -1 for the test's
  // own.
  explicit LaunchProcess(std::vector<std::string> args, std::map<std::string, std::string> environment = {},
                         int network = -1);
  ~LaunchProcess();
  LaunchProcess(const LaunchProcess&) = delete;
  LaunchProcess& operator=(const LaunchProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;

  // Returns the next `count` lines that workers write to descriptor 9. Fails the test if they do not arrive.
  std::vector<std::string> events(int count);
  // Waits until no process has descriptor 9 any more. Returns the text that was still written to it.
  std::string events_to_the_end();

  // Waits for the launcher. Returns its exit code, or -signal.
  int wait();
  std::string out() const { return read(out_path_); }
  std::string err() const { return read(err_path_); }
  // The lines of err() except those about waiting, which the launcher may print anywhere on a slow machine.
  std::vector<std::string> complaints() const;

 private:
  static std::string read(const std::string& path);

  std::string out_path_;
  std::string err_path_;
  pid_t pid_ = 0;
  int events_fd_ = -1;
};

// The folder in which the launchers of this test process describe their jobs (GRADWIRE_RUNTIME_DIR).
std::string runtime_folder();

// Returns `options` followed by a shell script as the program: {"sh", "-c", script}.
std::vector<std::string> with_script(std::vector<std::string> options, const std::string& script);

std::vector<std::string> lines(const std::string& text);

}  // namespace gradwire::tests
