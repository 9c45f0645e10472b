#include "gradwire/store/c10d/c10d_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/security/local_peer/tcp_peer_user.h"
#include "gradwire/security/local_peer/user_guard.h"
#include "gradwire/store/c10d/c10d_protocol.h"
#include "gradwire/transport/refused.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/dial.h"

namespace gradwire::store {
namespace {

// Limits for connecting, and for the answer to the greeting. PyTorch's server asks the name service for the
// name of each client that connects. All clients wait meanwhile: for seconds, if the name service does not
// answer.
constexpr absl::Duration kConnectTime = absl::Seconds(5);
constexpr absl::Duration kGreetTime = absl::Seconds(30);
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

// Finds out that the host of the server has vanished, also during a call that waits indefinitely. The times
// are those of the connections of Gradwire's own protocol.
void set_keepalive(int socket) {
  const auto set = [socket](int level, int name, int value) {
    ::setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

absl::Status closed() {
  return absl::UnavailableError("the server closed the connection: it has ended, or refused the call");
}

}  // namespace

absl::Status C10dSocket::wait(int socket, short events, Clock& clock, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - clock.now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("the server did not answer in time");
    pollfd entry = {.fd = socket, .events = events, .revents = 0};
    // Rounded up, so that the last millisecond is not spent in a loop.
    const int64_t ms = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
    const int ready = ::poll(&entry, 1, static_cast<int>(ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
  }
}

absl::StatusOr<Descriptor> C10dSocket::connect(const Endpoint& endpoint, Clock& clock, absl::Time deadline) {
  // As in the other client, localhost means 127.0.0.1.
  const Endpoint target =
      absl::EqualsIgnoreCase(endpoint.host, "localhost") ? Endpoint{"127.0.0.1", endpoint.port} : endpoint;
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<transport::SocketAddress> addresses,
                            transport::resolve_addresses(to_string(target)));
  int error = ETIME;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    Descriptor socket = transport::begin_to_connect(addresses[i]);
    if (!socket.valid()) {
      error = errno;
      continue;
    }
    // The addresses that are left share the remaining time equally.
    const absl::Time now = clock.now();
    const absl::Time until = now + (deadline - now) / static_cast<int64_t>(addresses.size() - i);
    if (!wait(socket.get(), POLLOUT, clock, until).ok()) {
      error = ETIME;
      continue;
    }
    error = transport::connect_error(socket.get());
    if (error == 0) {
      set_keepalive(socket.get());
      return socket;
    }
  }
  if (is_shortage(error))
    return system_status(absl::StrCat("cannot connect to ", to_string(endpoint)), error);
  const std::string text = absl::StrCat("cannot connect to ", to_string(endpoint), ": ",
                                        error == ETIME ? "no answer in time" : std::strerror(error));
  return error == ECONNREFUSED ? transport::refused_error(text) : absl::UnavailableError(text);
}

absl::StatusOr<C10dSocket> C10dSocket::open(const C10dTarget& target, Clock& clock, absl::Time deadline,
                                            Server& server) {
  GRADWIRE_ASSIGN_OR_RETURN(Descriptor connected,
                            connect(target.endpoint, clock, std::min(deadline, clock.now() + kConnectTime)));
  if (target.users.has_value()) {
    GRADWIRE_ASSIGN_OR_RETURN(const uid_t user, security::tcp_server_user(connected.get()));
    GRADWIRE_RETURN_IF_ERROR(
        security::UserGuard(*target.users, clock).check(user, "the server of a TCPStore of PyTorch"));
  }
  C10dSocket socket(std::move(connected), clock);
  std::string greeting(kC10dGreeting);
  greeting.push_back(static_cast<char>(C10dQuery::kPing));
  put_c10d_number(greeting, kC10dGradwireNonce, 4);
  const absl::Time until = std::min(deadline, clock.now() + kGreetTime);
  GRADWIRE_RETURN_IF_ERROR(socket.send(greeting, until));
  const absl::StatusOr<std::string> answer = socket.read(4, until);
  if (absl::IsDeadlineExceeded(answer.status())) {
    return absl::UnavailableError("the server accepted the connection but did not answer");
  }
  GRADWIRE_RETURN_IF_ERROR(answer.status());
  const auto nonce = static_cast<uint32_t>(load_c10d_number(*answer));
  if (nonce != kC10dGradwireNonce && nonce != ~kC10dGradwireNonce) {
    return absl::FailedPreconditionError("the server at this address is not a store");
  }
  server = nonce == kC10dGradwireNonce ? Server::kTorch : Server::kGradwire;
  return socket;
}

absl::Status C10dSocket::send(absl::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(put));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      GRADWIRE_RETURN_IF_ERROR(wait(socket_.get(), POLLOUT, *clock_, deadline));
    } else if (errno != EINTR) {
      return closed();
    }
  }
  return absl::OkStatus();
}

absl::Status C10dSocket::receive(absl::Time deadline) {
  if (buffer_ == nullptr) buffer_ = std::make_unique_for_overwrite<char[]>(kBufferBytes);
  while (true) {
    const ssize_t got = ::recv(socket_.get(), buffer_.get(), kBufferBytes, MSG_DONTWAIT);
    if (got > 0) {
      unread_ = absl::string_view(buffer_.get(), static_cast<std::size_t>(got));
      return absl::OkStatus();
    }
    if (got == 0) return closed();
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      GRADWIRE_RETURN_IF_ERROR(wait(socket_.get(), POLLIN, *clock_, deadline));
    } else if (errno != EINTR) {
      return closed();
    }
  }
}

// The memory grows with the bytes that have arrived. An answer may have very many short strings, so each must
// not cost a system call.
absl::StatusOr<std::string> C10dSocket::read(std::size_t size, absl::Time deadline) {
  std::string bytes;
  while (true) {
    const absl::string_view part = unread_.substr(0, size - bytes.size());
    bytes.append(part.data(), part.size());
    unread_.remove_prefix(part.size());
    if (bytes.size() == size) return bytes;
    GRADWIRE_RETURN_IF_ERROR(receive(deadline));
  }
}

absl::StatusOr<uint64_t> C10dSocket::read_number(absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string bytes, read(8, deadline));
  return load_c10d_number(bytes);
}

absl::StatusOr<std::string> C10dSocket::read_string(std::size_t max_bytes, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const uint64_t size, read_number(deadline));
  if (size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an answer of ", size, " bytes is over the limit of ", max_bytes));
  }
  return read(size, deadline);
}

absl::Status C10dSocket::execute(std::string queries, absl::Time deadline) {
  const uint32_t nonce = next_nonce_++;
  queries.push_back(static_cast<char>(C10dQuery::kPing));
  put_c10d_number(queries, nonce, 4);
  GRADWIRE_RETURN_IF_ERROR(send(queries, deadline));
  GRADWIRE_ASSIGN_OR_RETURN(const std::string answer, read(4, deadline));
  if (load_c10d_number(answer) == nonce) return absl::OkStatus();
  return absl::FailedPreconditionError("the server at this address is not a store");
}

bool C10dSocket::is_stale() const {
  if (!unread_.empty()) return true;
  char byte;
  const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

}  // namespace gradwire::store
