#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace gradwire::rpc {

// What a worker says it has sent to another until now (proto/rpc.proto, Departures).
struct Departures {
  // At most so many connections stand between two workers; a longer list is not accepted.
  static constexpr std::size_t kMaxConnections = 1024;

  struct Connection {
    uint64_t number = 0;
    uint64_t messages = 0;
  };
  // The highest number that it gave to a connection with this receiver. A connection up to there that is not
  // in `open` has ended at the sender.
  uint64_t newest = 0;
  std::vector<Connection> open;
};

// What has been read of the messages that one other worker sent: a pure state machine. It answers whether
// something that was sent before a given message may still arrive, on whichever connection.
//
// A connection is unknown until its Hello is read, then open, then closed. One that has ended at the sender
// before its Hello was read stays out: open() refuses it, so that nothing comes on it any more.
//
// Not thread-safe, but for the counters.
class Arrivals {
 public:
  // Messages that have been read on a connection and handed over, Hello and Goodbye not counted.
  using Counter = std::atomic<uint64_t>;

  // The Hello of a connection is read. False when no honest sender's Hello can come with this number any
  // more.
  bool open(uint64_t connection, std::shared_ptr<const Counter> read);
  // Nothing more is read on it.
  void close(uint64_t connection);

  // The sender tells what it has sent.
  void told(const Departures& sent);
  // The same, and all of that must be read before settled() is true again. Returns settled().
  bool require(const Departures& sent);
  // Everything that require() named has been read, or its connection is closed.
  bool settled();

  std::size_t connections() const { return open_.size(); }
  // Connections whose Hello may yet come, though others are newer.
  std::size_t expected() const { return expected_.size(); }

 private:
  bool is_read(uint64_t connection, uint64_t messages) const;

  absl::flat_hash_map<uint64_t, std::shared_ptr<const Counter>> open_;
  // The highest number that the sender told of. Of the numbers up to there, those whose Hello may yet come;
  // of the others, those whose Hello has come.
  uint64_t newest_ = 0;
  absl::flat_hash_set<uint64_t> expected_;
  absl::flat_hash_set<uint64_t> seen_;
  // Connection -> how many messages must be read on it.
  absl::flat_hash_map<uint64_t, uint64_t> due_;
};

}  // namespace gradwire::rpc
