#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/transport/connection.h"

namespace gradwire::collectives::cpu {

class MeshCore;

// One connection of a mesh, and who is at its other end.
class MeshLink : public transport::ConnectionListener, public std::enable_shared_from_this<MeshLink> {
 public:
  // `rank`: to which it is made; -1 for a connection that came in and has not said who it is.
  MeshLink(MeshCore& core, int rank, std::string transport)
      : core_(core), made_here_(rank >= 0), transport_(std::move(transport)), rank(rank) {}

  void on_message(transport::Connection& connection, transport::Message message) override;
  void on_closed(transport::Connection& connection, absl::Status reason) override;

  bool made_here() const { return made_here_; }
  const std::string& transport() const { return transport_; }

 private:
  friend class MeshCore;

  MeshCore& core_;  // It ends its transports, and with them this link, before it goes.
  const bool made_here_;
  const std::string transport_;

  // Guarded by MeshCore::mutex_. `rank` and `connection` stay as they are once they are set.
  int rank;
  std::shared_ptr<transport::Connection> connection;
  bool welcomed = false;
  bool left = false;  // It said goodbye.
  bool closed = false;
  absl::Status closed_reason;
  uint64_t timer = 0;
};

}  // namespace gradwire::collectives::cpu
