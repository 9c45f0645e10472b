#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::rpc {

// The messages that a worker says it has sent to another worker so far (proto/rpc.proto, Departures).
struct Departures {
  // Maximum number of open connections between two workers. A longer list is refused.
  static constexpr std::size_t kMaxConnections = 1024;

  struct Connection {
    uint64_t number = 0;
    uint64_t messages = 0;
  };
  // The highest number that the sender has given to a connection with this receiver. A connection with a
  // number up to `newest` that is not in `open` has ended at the sender.
  uint64_t newest = 0;
  std::vector<Connection> open;
};

// Tracks which messages of one other worker have been read, over all its connections: a pure state machine.
// It answers whether a message that was sent before a given message may still arrive, on any connection.
//
// States of a connection: unknown until its Hello is read, then open, then closed. A connection that ends at
// the sender before its Hello is read is refused: open() returns false for it, so that none of its messages
// is handled later.
//
// Not thread-safe, except for the counters.
class Arrivals {
 public:
  // Number of messages that have been read on a connection and handled. Hello and Goodbye are not counted.
  using Counter = std::atomic<uint64_t>;

  // Call when the Hello of a connection is read. `read` counts the messages that are handled on it. Returns
  // false if an honest sender cannot send a Hello with this number now: the number is 0 or was used before,
  // or the connection has ended at the sender.
  bool open(uint64_t connection, std::shared_ptr<const Counter> read);
  // Call when no more messages are read on the connection.
  void close(uint64_t connection);

  // Records what the sender says it has sent.
  void update(const Departures& sent);
  // As update(). In addition settled() is false until all of these messages are read. Returns settled().
  bool require(const Departures& sent);
  // Whether every message that require() named has been read, or its connection is closed.
  bool settled();

  std::size_t connections() const { return open_.size(); }
  // Number of connections whose Hello may still arrive, although newer connections exist.
  std::size_t expected() const { return expected_.size(); }

 private:
  bool is_read(uint64_t connection, uint64_t messages) const;

  HashMap<uint64_t, std::shared_ptr<const Counter>> open_;
  // The highest connection number that the sender has reported.
  uint64_t newest_ = 0;
  // Numbers up to newest_ whose Hello may still arrive.
  HashSet<uint64_t> expected_;
  // Numbers above newest_ whose Hello has been read.
  HashSet<uint64_t> seen_;
  // Connection -> number of messages that must be read on it before it is settled.
  HashMap<uint64_t, uint64_t> due_;
};

}  // namespace gradwire::rpc
