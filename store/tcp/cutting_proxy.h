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

// A proxy for tests, between clients and a server on this machine. It forwards bytes in both directions until
// the test makes it drop or hold the server's bytes, or cut the connections. Thread-safe.
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
  // Drops the bytes that the server sends from now on.
  void lose_answers() { losing_ = true; }
  // Holds the bytes that the server sends from now on, until pass_held().
  void hold_answers() {
    holding_ = true;
    pass_held();
  }
  // Forwards the bytes that the server has sent so far, and goes on holding.
  void pass_held() { request(passing_); }
  // Ends all connections and drops the held bytes. Later connections are forwarded normally.
  void cut() { request(cutting_); }

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

  // Sets a flag for the proxy's thread and waits until the thread has acted on it.
  void request(std::atomic<bool>& flag) {
    flag = true;
    wake();
    while (flag) std::this_thread::yield();
  }
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  // Forwards the bytes that have arrived. Returns false at the end of the stream.
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
          pollfd readable = {pair.server.get(), POLLIN, 0};
          if (::poll(&readable, 1, 0) > 0) (void)pass(pair.server.get(), pair.client.get(), losing_);
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
  std::list<Pair> pairs_;  // Used by the thread only.
  std::thread thread_;
};

}  // namespace gradwire::store
