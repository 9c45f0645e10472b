#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "gradwire/base/io/descriptor.h"

namespace gradwire::tests {

// A worker of a job as a process. It ends with this object, and when the test dies, because its standard
// input ends then.
class MemberProcess {
 public:
  // `command`: the program and its arguments. `environment`: "NAME=VALUE" in addition to that of the test.
  explicit MemberProcess(std::vector<std::string> command, std::vector<std::string> environment = {});
  // Kills the process.
  ~MemberProcess();
  MemberProcess(const MemberProcess&) = delete;
  MemberProcess& operator=(const MemberProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  // Writes a byte to its standard input.
  void go_on() const;

 private:
  pid_t pid_ = 0;
  Descriptor input_;
};

}  // namespace gradwire::tests
