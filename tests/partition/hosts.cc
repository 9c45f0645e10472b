#include "gradwire/tests/partition/hosts.h"

#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace chaos {
namespace {

absl::Status run(const std::string& command) {
  FILE* const pipe = ::popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return absl::UnavailableError(absl::StrCat("cannot run ", command));
  std::string output;
  for (int c; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  if (::pclose(pipe) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("\"", command, "\" failed: ", output));
}

absl::Status run_all(std::initializer_list<std::string> commands) {
  for (const std::string& command : commands) {
    if (absl::Status status = run(command); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Returns the inode of a process's network namespace, which identifies it; 0 if the process does not exist.
ino_t namespace_of(const std::string& process) {
  struct stat about = {};
  return ::stat(absl::StrCat("/proc/", process, "/ns/net").c_str(), &about) == 0 ? about.st_ino : 0;
}

}  // namespace

absl::Status Hosts::enter() {
  if (::unshare(CLONE_NEWNET) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot create a network namespace: ", ::strerror(errno), "; run the test as root"));
  }
  return run_all({"ip link set lo up", "ip link add switch type bridge",
                  absl::StrCat("ip addr add ", own_address(), "/24 dev switch"), "ip link set switch up"});
}

absl::Status Hosts::join(int number, pid_t pid) {
  const std::string process = absl::StrCat(pid);
  const absl::Time give_up = absl::Now() + absl::Seconds(10);
  while (namespace_of(process) == namespace_of("self") || namespace_of(process) == 0) {
    if (absl::Now() > give_up) {
      return absl::UnavailableError(
          absl::StrCat("process ", pid, " did not enter a network namespace of its own within 10 s"));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  const std::string port = absl::StrCat("port", number);
  const std::string inside = absl::StrCat("nsenter --net=/proc/", pid, "/ns/net ip ");
  // The system removes the device of an earlier host some time after the end of its processes, so delete it
  // now.
  (void)run(absl::StrCat("ip link del ", port));
  return run_all({absl::StrCat("ip link add ", port, " type veth peer name eth0 netns ", pid),
                  absl::StrCat("ip link set ", port, " master switch up"), inside + "link set lo up",
                  absl::StrCat(inside, "addr add 10.77.0.", number, "/24 dev eth0"),
                  inside + "link set eth0 up"});
}

absl::Status Hosts::cut(int number) { return run(absl::StrCat("ip link set port", number, " nomaster")); }

absl::Status Hosts::heal(int number) {
  return run(absl::StrCat("ip link set port", number, " master switch"));
}

}  // namespace chaos
