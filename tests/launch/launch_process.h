#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/base/free_port.h"

namespace gradwire::tests {

// The launcher as a process, as a user starts it. Its output goes to files, which are there when it has
// ended. Its workers inherit descriptor 9, a pipe: what they write there the test reads as events, and the
// pipe's end means that the launcher, all workers and all that they started are gone.
//
// Not thread-safe. The destructor kills the launcher if it runs.
class LaunchProcess {
 public:
  // `network`: a namespace to start it in, as setns(2) takes it; -1: the test's own.
  explicit LaunchProcess(std::vector<std::string> args, std::map<std::string, std::string> environment = {},
                         int network = -1);
  ~LaunchProcess();
  LaunchProcess(const LaunchProcess&) = delete;
  LaunchProcess& operator=(const LaunchProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;

  // The next `count` lines that workers wrote to descriptor 9. Fails the test when they do not come.
  std::vector<std::string> events(int count);
  // Waits until nobody has descriptor 9 any more; returns what was still written there.
  std::string events_to_the_end();

  // The exit code, or -signal.
  int wait();
  std::string out() const { return read(out_path_); }
  std::string err() const { return read(err_path_); }
  // The lines of err() but for what the launcher says it waits for, when it has waited for a while: a slow
  // machine makes it do so anywhere.
  std::vector<std::string> complaints() const;

 private:
  static std::string read(const std::string& path);

  std::string out_path_;
  std::string err_path_;
  pid_t pid_ = 0;
  int events_fd_ = -1;
};

// A program in the shell's language as a worker: {"sh", "-c", script}, put after `options`.
std::vector<std::string> with_script(std::vector<std::string> options, const std::string& script);

std::vector<std::string> lines(const std::string& text);

}  // namespace gradwire::tests
