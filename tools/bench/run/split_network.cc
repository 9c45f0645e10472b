#include "gradwire/tools/bench/run/split_network.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gradwire::bench {
namespace {

constexpr char kLeftLink[] = "gradwire_left";
constexpr char kRightLink[] = "gradwire_right";

// Returns an error with the description of errno.
absl::Status failed(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Runs `work` in another network namespace. The namespace is an attribute of a thread, so this uses a new
// thread: the caller stays in its own namespace.
absl::Status in_network(int fd, absl::FunctionRef<absl::Status()> work) {
  absl::Status status;
  std::thread([&] {
    status = setns(fd, CLONE_NEWNET) == 0 ? work() : failed("cannot enter a network namespace");
  }).join();
  return status;
}

int new_network() {
  int fd = -1;
  int error = 0;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) == 0) fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    error = errno;
  }).join();
  errno = error;
  return fd;
}

absl::Status run_ip(const std::string& arguments) {
  const std::string command = absl::StrCat("ip ", arguments, " 2>&1");
  std::FILE* output = popen(command.c_str(), "r");
  if (output == nullptr) return failed("cannot run ip");
  std::string text;
  char buffer[256];
  while (std::fgets(buffer, sizeof buffer, output) != nullptr) text += buffer;
  if (pclose(output) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("ip ", arguments, ": ", absl::StripTrailingAsciiWhitespace(text)));
}

absl::Status bring_up(const std::string& link, const std::string& address) {
  for (const std::string& arguments :
       {std::string("link set lo up"), absl::StrCat("addr add ", address, "/24 dev ", link),
        absl::StrCat("link set ", link, " up")}) {
    if (absl::Status status = run_ip(arguments); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SplitNetwork>> SplitNetwork::make() {
  const int left = new_network();
  if (left < 0) return failed("cannot create a network namespace");
  const int right = new_network();
  std::unique_ptr<SplitNetwork> network(new SplitNetwork(left, right));
  if (right < 0) return failed("cannot create a second network namespace");
  absl::Status status = in_network(left, [&] {
    // The program ip accepts a path instead of the name of a namespace.
    absl::Status made = run_ip(absl::StrCat("link add ", kLeftLink, " type veth peer name ", kRightLink,
                                            " netns /proc/", getpid(), "/fd/", right));
    return made.ok() ? bring_up(kLeftLink, left_address()) : made;
  });
  if (status.ok()) status = in_network(right, [] { return bring_up(kRightLink, right_address()); });
  if (!status.ok()) return status;
  return network;
}

SplitNetwork::~SplitNetwork() {
  close(left_);
  if (right_ >= 0) close(right_);
}

absl::Status cut_link(pid_t pid) {
  const int network = open(absl::StrCat("/proc/", pid, "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
  if (network < 0) return failed(absl::StrCat("cannot open the network namespace of process ", pid));
  absl::Status status = in_network(network, [] {
    const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return failed("cannot create a socket");
    ifreq request{};
    std::strncpy(request.ifr_name, kRightLink, sizeof request.ifr_name - 1);
    bool done = ioctl(socket, SIOCGIFFLAGS, &request) == 0;
    request.ifr_flags = static_cast<short>(request.ifr_flags & ~IFF_UP);
    done = done && ioctl(socket, SIOCSIFFLAGS, &request) == 0;
    absl::Status result = done ? absl::OkStatus() : failed("cannot take the link down");
    close(socket);
    return result;
  });
  close(network);
  return status;
}

}  // namespace gradwire::bench
