#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// For tests: somebody in the middle. It listens at a port of its own, connects each of its clients to a
// server of this host, and passes on what both say, with changes. It keeps what it has read. Thread-safe.
class Relay {
 public:
  enum class Way { kToServer, kToClient };
  // Changes bytes on their way. `connection` counts from 0. `position`: the bytes that this direction of the
  // connection has carried before. Called on the relay's thread.
  using Change = std::function<void(int connection, Way way, std::size_t position, std::string& bytes)>;
  // Flips bits of the byte at this position of one direction, in each connection.
  static Change flip(Way way, std::size_t position, char bits = 1);

  explicit Relay(int server_port, Change change = nullptr);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }
  // All bytes that the first connection has carried so far, as they were sent.
  std::string seen(Way way);

 private:
  struct Pair {
    int number;
    // From the client, and from the server.
    Descriptor sockets[2];
    std::size_t passed[2] = {0, 0};
    bool ended[2] = {false, false};
  };

  void run();
  void accept();
  // Passes on the bytes of one direction. Returns false when the connection is over.
  bool pass(Pair& pair, int from);

  const int server_port_;
  const Change change_;
  Descriptor listener_;
  Descriptor wake_;
  int port_ = 0;

  Mutex mutex_;
  std::string seen_[2] ABSL_GUARDED_BY(mutex_);

  // Used by the thread only.
  std::list<Pair> pairs_;
  int accepted_ = 0;

  std::thread thread_;
};

}  // namespace gradwire
