#include "gradwire/base/testing/other_user.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "gradwire/base/fork.h"

namespace gradwire {
namespace {

bool read_all(int socket, void* to, std::size_t size) {
  char* next = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = ::read(socket, next, size);
    if (got <= 0) return false;
    next += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_text(int socket, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += text;
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

bool receive_text(int socket, std::string& text) {
  uint32_t size = 0;
  if (!read_all(socket, &size, sizeof(size))) return false;
  text.resize(size);
  return read_all(socket, text.data(), size);
}

bool become(uid_t user) {
  return ::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 &&
         ::setresuid(user, user, user) == 0;
}

}  // namespace

absl::Status OtherUser::available() {
  if (::geteuid() != 0) return absl::PermissionDeniedError("only root can become another user");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(become(kUser) ? 0 : 1);
  int status = -1;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
    return absl::PermissionDeniedError("this process cannot become another user");
  return absl::OkStatus();
}

OtherUser::OtherUser(Body body, uid_t user) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    ADD_FAILURE() << "cannot create a pair of sockets";
    return;
  }
  Descriptor own(ends[0]), other(ends[1]);
  pid_ = fork_with_objects();
  if (pid_ == 0) {
    own.reset();
    if (!become(user)) ::_exit(1);
    std::string input;
    while (receive_text(other.get(), input) && send_text(other.get(), body(input))) {
    }
    ::_exit(0);
  }
  socket_ = std::move(own);
}

OtherUser::~OtherUser() {
  socket_.reset();
  int status = -1;
  if (pid_ > 0 && ::waitpid(pid_, &status, 0) == pid_) {
    EXPECT_EQ(status, 0) << "the process of another user has failed";
  }
}

std::string OtherUser::ask(const std::string& input) {
  std::string answer;
  const bool answered =
      socket_.valid() && send_text(socket_.get(), input) && receive_text(socket_.get(), answer);
  EXPECT_TRUE(answered) << "the process of another user has ended";
  return answer;
}

}  // namespace gradwire
