#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/io/descriptor.h"

namespace gradwire::store {

// For tests: stands between clients and a server of this machine and passes on what both say, until it is
// told to lose or to hold what the server says, or to cut the connections. Thread-safe.
class CuttingProxy {
 public:
  explicit CuttingProxy(int server_port) : server_port_(server_port) {
    listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~CuttingProxy() {
    stopping_ = true;
    wake();
    thread_.join();
  }
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  int port() const { return port_; }
  // What the server says from now on is lost.
  void lose_answers() { losing_ = true; }
  // What the server says from now on is held, until pass_held().
  void hold_answers() {
    holding_ = true;
    pass_held();
  }
  // Passes on what the server has said so far, and goes on holding.
  void pass_held() { ask(passing_); }
  // Ends all connections, with what is held; those that come later pass everything.
  void cut() { ask(cutting_); }

 private:
  struct Pair {
    Descriptor client;
    Descriptor server;
  };

  static sockaddr_in loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  // Has the thread do what the flag stands for.
  void ask(std::atomic<bool>& flag) {
    flag = true;
    wake();
    while (flag) std::this_thread::yield();
  }
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  // False at the end of the stream.
  static bool pass(int from, int to, bool lose) {
    char bytes[65536];
    const ssize_t count = ::recv(from, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    ssize_t sent = lose ? count : 0;
    while (sent < count) {
      const ssize_t step = ::send(to, bytes + sent, static_cast<std::size_t>(count - sent), MSG_NOSIGNAL);
      if (step <= 0) return false;
      sent += step;
    }
    return true;
  }

  void accept_one() {
    Pair pair;
    pair.client = Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    pair.server = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(server_port_);
    if (::connect(pair.server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      pairs_.push_back(std::move(pair));
    }
  }

  void run() {
    while (!stopping_) {
      std::vector<pollfd> watched = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        watched.push_back({pair.client.get(), POLLIN, 0});
        watched.push_back({pair.server.get(), static_cast<short>(holding_ ? 0 : POLLIN), 0});
      }
      ::poll(watched.data(), watched.size(), -1);
      if (watched[0].revents != 0) {
        uint64_t count;
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
      }
      if (cutting_) {
        pairs_.clear();
        losing_ = false;
        holding_ = false;
        cutting_ = false;
        continue;
      }
      if (passing_) {
        for (const Pair& pair : pairs_) {
          pollfd said = {pair.server.get(), POLLIN, 0};
          if (::poll(&said, 1, 0) > 0) (void)pass(pair.server.get(), pair.client.get(), losing_);
        }
        passing_ = false;
        continue;
      }
      std::size_t at = 2;
      for (auto pair = pairs_.begin(); pair != pairs_.end(); at += 2) {
        const bool open =
            (watched[at].revents == 0 || pass(pair->client.get(), pair->server.get(), false)) &&
            (watched[at + 1].revents == 0 || pass(pair->server.get(), pair->client.get(), losing_));
        pair = open ? std::next(pair) : pairs_.erase(pair);
      }
      if (watched[1].revents != 0) accept_one();
    }
  }

  const int server_port_;
  int port_ = 0;
  Descriptor listener_;
  Descriptor wake_{::eventfd(0, EFD_CLOEXEC)};
  std::atomic<bool> losing_{false};
  std::atomic<bool> holding_{false};
  std::atomic<bool> passing_{false};
  std::atomic<bool> cutting_{false};
  std::atomic<bool> stopping_{false};
  std::list<Pair> pairs_;  // The thread's.
  std::thread thread_;
};

}  // namespace gradwire::store
