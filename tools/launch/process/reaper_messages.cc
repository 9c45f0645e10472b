// Messages between the launcher and the reaper: a ReaperRequest or a ReaperReply, as it is in memory. After
// a request to start a worker follow the packed strings: Head, then path, arguments and environment, each
// ended by a zero byte.

#include "gradwire/tools/launch/process/reaper_messages.h"

#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/string_view.h"

namespace gradwire::tools {
namespace {

constexpr size_t kMaxDescriptors = 4;

struct Head {
  sigset_t signal_mask;
  bool ignore_sigpipe;
  uint64_t arguments;
};

void append(std::string& packed, const std::string& text) { packed.append(text.c_str(), text.size() + 1); }

}  // namespace

std::string packed_start(const WorkerStart& start) {
  Head head;
  memset(&head, 0, sizeof(head));
  head.signal_mask = start.signal_mask;
  head.ignore_sigpipe = start.ignore_sigpipe;
  head.arguments = start.command.argv.size();
  std::string packed(reinterpret_cast<const char*>(&head), sizeof(head));
  append(packed, start.command.path);
  for (const std::string& argument : start.command.argv) append(packed, argument);
  for (const std::string& variable : start.environment) append(packed, variable);
  return packed;
}

// The reaper is a fork of the launcher, so both have the same Head. The checks are against a message that
// was cut, not against a hostile peer.
std::optional<WorkerStart> unpacked_start(const std::string& packed) {
  Head head;
  if (packed.size() <= sizeof(head) || packed.back() != '\0') return std::nullopt;
  memcpy(&head, packed.data(), sizeof(head));
  WorkerStart start{.signal_mask = head.signal_mask, .ignore_sigpipe = head.ignore_sigpipe};
  absl::string_view rest(packed);
  rest.remove_prefix(sizeof(head));
  for (uint64_t number = 0; !rest.empty(); ++number) {
    std::string text(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(text.size() + 1);
    if (number == 0) {
      start.command.path = std::move(text);
    } else {
      (number <= head.arguments ? start.command.argv : start.environment).push_back(std::move(text));
    }
  }
  return start.command.argv.size() == head.arguments ? std::make_optional(std::move(start)) : std::nullopt;
}

// The descriptors travel with the first part. A part that is sent later, after a short write, must not carry
// them again.
bool send_all(int socket, const void* data, size_t size, const std::vector<int>& descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  const size_t descriptor_bytes = std::min(descriptors.size(), kMaxDescriptors) * sizeof(int);
  bool first = true;
  while (size > 0) {
    iovec part{.iov_base = const_cast<void*>(data), .iov_len = size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (first && descriptor_bytes > 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptor_bytes);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(descriptor_bytes);
      memcpy(CMSG_DATA(rights), descriptors.data(), descriptor_bytes);
    }
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    first = false;
    data = static_cast<const char*>(data) + sent;
    size -= sent;
  }
  return true;
}

// Every descriptor that arrives is owned at once, so that none leaks if it is unexpected or if the next read
// fails.
bool receive_all(int socket, void* data, size_t size, std::vector<Descriptor>* descriptors) {
  while (size > 0) {
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
    iovec part{.iov_base = data, .iov_len = size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int descriptor;
        memcpy(&descriptor, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
        Descriptor received(descriptor);
        if (descriptors != nullptr) descriptors->push_back(std::move(received));
      }
    }
    data = static_cast<char*>(data) + got;
    size -= got;
  }
  return true;
}

}  // namespace gradwire::tools
