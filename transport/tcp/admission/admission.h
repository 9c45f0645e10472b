#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::transport {

// Decides which accepted sockets a process keeps. A socket is an arrival until its peer has proved who it is,
// then a connection. Both are counted by host.
//
// Rules for a new socket:
// - If its host has as many arrivals as it may have, the new socket replaces the host's longest waiting one,
//   if that has waited for kProtected. Otherwise the new socket is refused.
// - If all places are taken, the new socket replaces one of the host that has the most arrivals. It must have
//   at least two more than the new socket's host, or its arrival must have waited for kProtected. Otherwise
//   the new socket is refused.
// So hosts share the places equally, and a host that fills its places with silent sockets does not keep
// others out. Within a host, an honest process gets in unless the host opens all its places anew within
// kProtected.
//
// A pure state machine. Not thread-safe.
class Admission {
 public:
  struct Bounds {
    std::size_t arrivals = 256;
    std::size_t arrivals_per_host = 128;
    std::size_t connections_per_host = 4096;
  };
  // Identifies a socket. 0: no socket.
  using Id = uint64_t;
  struct Outcome {
    // The id of the new socket; 0: it must be closed.
    Id admitted = 0;
    // The arrival that must be closed to make room. leave() is called for it as for others.
    Id replaced = 0;
  };

  // The time in which an arrival can be replaced only by one of another host with fewer arrivals.
  static constexpr absl::Duration kProtected = absl::Milliseconds(250);

  explicit Admission(const Bounds& bounds) : bounds_(bounds) {}

  Outcome arrive(const std::string& host, absl::Time now);
  // Whether the host of this arrival may have another connection.
  bool may_connect(Id id) const;
  // The arrival becomes a connection.
  void connect(Id id);
  bool is_connection(Id id) const { return connections_.contains(id); }
  // The socket is closed. Ignores an unknown id, and one that has left.
  void leave(Id id);

  std::size_t arrivals() const { return arrivals_.size(); }
  std::size_t connections() const { return connections_.size(); }
  // Number of sockets that were refused, and that were replaced.
  uint64_t refused() const { return refused_; }
  uint64_t replaced() const { return replaced_; }

 private:
  struct Host {
    std::size_t arrivals = 0;
    std::size_t connections = 0;
  };
  using Hosts = std::map<std::string, Host>;
  // The name and the counts of a host. Pointers to elements stay valid.
  using HostEntry = Hosts::value_type;
  struct Waiting {
    HostEntry* host;
    absl::Time since;
  };

  Id choose_replaced(const HostEntry& host, absl::Time now) const;
  // The arrival of `host` that has waited longest, or shortest; 0 if it has none.
  Id arrival_of(const HostEntry& host, bool longest) const;
  bool is_protected(Id id, absl::Time now) const;
  void forget_if_unused(HostEntry* host);

  const Bounds bounds_;
  Hosts hosts_;
  // In the order of their arrival.
  std::map<Id, Waiting> arrivals_;
  HashMap<Id, HostEntry*> connections_;
  Id last_id_ = 0;
  uint64_t refused_ = 0;
  uint64_t replaced_ = 0;
};

}  // namespace gradwire::transport
