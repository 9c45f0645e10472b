#include "gradwire/tests/security/relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "gradwire/tests/security/raw_socket.h"

namespace gradwire {

Relay::Change Relay::flip(Way way, std::size_t position, char bits) {
  return [=](int, Way of, std::size_t begin, std::string& bytes) {
    if (of != way || position < begin || position - begin >= bytes.size()) return;
    bytes[position - begin] = static_cast<char>(bytes[position - begin] ^ bits);
  };
}

Relay::Relay(int server_port, Change change)
    : server_port_(server_port),
      change_(std::move(change)),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  sockaddr_in address = RawSocket::loopback(0);
  socklen_t length = sizeof(address);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), 64) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    std::abort();
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

std::string Relay::seen(Way way) {
  MutexLock lock(mutex_);
  return seen_[way == Way::kToServer ? 0 : 1];
}

void Relay::run() {
  while (true) {
    std::vector<pollfd> waited = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Pair& pair : pairs_) {
      for (int end = 0; end < 2; ++end) {
        // A descriptor of -1 is not waited for.
        waited.push_back({pair.ended[end] ? -1 : pair.sockets[end].get(), POLLIN, 0});
      }
    }
    ::poll(waited.data(), waited.size(), -1);
    if (waited[0].revents != 0) return;
    std::size_t at = 2;
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      bool lives = true;
      for (int end = 0; end < 2; ++end) {
        const bool ready = waited[at++].revents != 0;
        if (ready && lives) lives = pass(*pair, end);
      }
      pair = lives ? std::next(pair) : pairs_.erase(pair);
    }
    if (waited[1].revents != 0) accept();
  }
}

void Relay::accept() {
  Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  Descriptor server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = RawSocket::loopback(server_port_);
  if (!client.valid() ||
      ::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return;
  Pair& pair = pairs_.emplace_back();
  pair.number = accepted_++;
  pair.sockets[0] = std::move(client);
  pair.sockets[1] = std::move(server);
}

bool Relay::pass(Pair& pair, int from) {
  std::string bytes(std::size_t{64} << 10, '\0');
  const ssize_t got = ::recv(pair.sockets[from].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  const int to = 1 - from;
  if (got < 0) return false;
  if (got == 0) {
    pair.ended[from] = true;
    ::shutdown(pair.sockets[to].get(), SHUT_WR);
    return !pair.ended[to];
  }
  bytes.resize(static_cast<std::size_t>(got));
  if (pair.number == 0) {
    MutexLock lock(mutex_);
    seen_[from].append(bytes);
  }
  const std::size_t position = pair.passed[from];
  pair.passed[from] += bytes.size();
  if (change_) change_(pair.number, from == 0 ? Way::kToServer : Way::kToClient, position, bytes);
  // The tests send less than the buffers of sockets have room for.
  return ::send(pair.sockets[to].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace gradwire
