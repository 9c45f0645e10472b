#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/c10d/c10d_connection.h"
#include "gradwire/store/c10d/c10d_session.h"
#include "gradwire/store/calls/store_peer.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::store {

// A client of PyTorch's TCPStore at a TcpStore's server: a C10dSession and its connection. Used only on the
// thread that drives the loop.
class C10dPeer : public StorePeer, public C10dSession::Server, public std::enable_shared_from_this<C10dPeer> {
 public:
  // The server, for one session.
  class Owner {
   public:
    virtual ~Owner() = default;
    // As the methods of C10dSession::Server. call_in_loop() may call StorePeer::send_in_loop().
    virtual absl::Status call_in_loop(uint64_t session, const proto::Request& request) = 0;
    virtual void cancel_in_loop(uint64_t session, uint64_t request) = 0;
    virtual int64_t add_workers_in_loop(int64_t n) = 0;
    // The connection has ended.
    virtual void closed_in_loop(uint64_t session) = 0;
  };
  // `owner` owns this object. `max_unsent_bytes` limits the answers that the
  // client does not read.
  C10dPeer(std::shared_ptr<transport::EventLoop> loop, Descriptor socket, std::string address,
           uint64_t session, std::weak_ptr<Owner> owner, std::size_t max_unsent_bytes);

  // Opens the session. Must be called once, when the owner knows the session.
  void start_in_loop();

  void send_in_loop(const proto::Response& response) override;
  void close_in_loop(const absl::Status& reason, absl::Duration flush) override;
  std::size_t unsent_bytes() const override { return connection_->unsent_bytes(); }
  std::string address() const override { return address_; }

 private:
  absl::Status call(const proto::Request& request) override;
  void cancel(uint64_t request) override;
  int64_t add_workers(int64_t n) override;
  void receive_in_loop(absl::string_view bytes);
  void finish_in_loop(const absl::Status& status);

  const std::shared_ptr<C10dConnection> connection_;
  const std::string address_;
  const uint64_t session_number_;
  const std::weak_ptr<Owner> owner_;
  const std::size_t max_unsent_bytes_;
  C10dSession session_;
  // Whether a request is being handled. Its answers are then sent at its end.
  bool receiving_ = false;
  // The first error of an answer to it.
  absl::Status failure_;
};

}  // namespace gradwire::store
