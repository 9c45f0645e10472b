#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/socket/address.h"

namespace gradwire::transport {

// Connects to the first of several addresses that answers.
//
//   1. try_next_in_loop(): a new socket begins to connect to the next address. The remaining addresses share
//      the remaining time equally.
//   2. on_events_in_loop(): the system reports the result. After a failure or a timeout continue with step 1.
//   3. finish_in_loop(): `done` gets the socket, or the error if no address or no time is left.
//
// Used only by the loop's driver.
class TcpDial : public EventHandler, public std::enable_shared_from_this<TcpDial> {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Descriptor> socket)>;

  // `peer` is used in messages. `addresses` must not be empty. `loop` must outlive this object.
  TcpDial(EventLoop& loop, std::string peer, std::vector<SocketAddress> addresses)
      : loop_(loop), peer_(std::move(peer)), addresses_(std::move(addresses)) {}

  // Must be called once. `done` may be called before this returns.
  void start_in_loop(absl::Time deadline, Done done);
  // `done` is not called any more.
  void cancel_in_loop();
  // The address that answered.
  const SocketAddress& address() const { return addresses_[next_ - 1]; }

 private:
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status& error) override {
    take_socket_in_loop();
    finish_in_loop(error);
  }
  void try_next_in_loop();
  // `error` is an errno; ETIME: the address has not answered in time.
  void address_failed_in_loop(int error);
  Descriptor take_socket_in_loop();
  void finish_in_loop(absl::StatusOr<Descriptor> result);

  EventLoop& loop_;
  const std::string peer_;
  const std::vector<SocketAddress> addresses_;
  absl::Time deadline_;
  Done done_;
  Descriptor socket_;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
  std::size_t next_ = 0;
  // Number of addresses whose host refused the connection.
  std::size_t refusals_ = 0;
  // The error of an address that was not tried, because this process had no descriptor or memory left; or 0.
  int shortage_ = 0;
  // The reason why the last address failed.
  std::string cause_ = "no answer in time";
};

// Returns a socket that has begun to connect. If that fails, the socket is not valid and errno is set.
Descriptor begin_to_connect(const SocketAddress& address);
// Returns the error of a socket that has begun to connect; 0 if it is connected.
int connect_error(int socket);

}  // namespace gradwire::transport
