#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/c10d/c10d_session.h"
#include "gradwire/store/calls/store_peer.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/turns/read_size.h"

namespace gradwire::store {

// The bytes of one client of PyTorch's TCPStore: reads what arrives, and sends what it is given as the socket
// has room.
//
// States: open (start_in_loop), closing (the rest is being sent), closed. Used only on the thread that drives
// the loop, which keeps it alive while it is open. The handlers are called from the loop, never inside a call
// to this object, and not after the end has been reported.
class C10dConnection : public transport::EventHandler, public std::enable_shared_from_this<C10dConnection> {
 public:
  struct Handlers {
    // Bytes have arrived.
    std::function<void(absl::string_view bytes)> on_bytes;
    // The connection has ended, whichever end closed it. The last call.
    std::function<void()> on_closed;
  };
  C10dConnection(std::shared_ptr<transport::EventLoop> loop, Descriptor socket)
      : loop_(std::move(loop)), socket_(std::move(socket)) {}

  void start_in_loop(Handlers handlers);
  void send_in_loop(absl::string_view bytes);
  // Sends the rest for at most `flush`, then closes the socket. No more bytes are delivered.
  void close_in_loop(absl::Duration flush);
  std::size_t unsent_bytes() const { return unsent_.size() - sent_; }

 private:
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status&) override { finish_in_loop(); }
  // Handles what has arrived, until the time of the loop's round is over (turns.h). A later round goes on.
  void read_in_loop();
  void defer_read_in_loop();
  void write_in_loop();
  void finish_in_loop();

  const std::shared_ptr<transport::EventLoop> loop_;
  Descriptor socket_;
  Handlers handlers_;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
  bool closing_ = false;
  // A deferred task will read.
  bool deferred_ = false;
  // Requests are short, so many of them fit into one read.
  transport::ReadSize read_size_{1 << 10, 16 << 10, 64 << 10};
  // The first sent_ bytes of unsent_ have been sent.
  std::string unsent_;
  std::size_t sent_ = 0;
};

// A client of PyTorch's TCPStore at a TcpStore's server: a C10dSession and its connection. Used only on the
// thread that drives the loop.
class C10dPeer : public StorePeer, public C10dSession::Server, public std::enable_shared_from_this<C10dPeer> {
 public:
  // The server, for one session.
  class Host {
   public:
    virtual ~Host() = default;
    // As the methods of C10dSession::Server. call_in_loop() may call StorePeer::send_in_loop().
    virtual absl::Status call_in_loop(uint64_t session, const proto::Request& request) = 0;
    virtual void cancel_in_loop(uint64_t session, uint64_t request) = 0;
    virtual int64_t add_workers_in_loop(int64_t n) = 0;
    // The connection has ended.
    virtual void closed_in_loop(uint64_t session) = 0;
  };
  // `host` owns this object. `max_unsent_bytes` limits the answers that the
  // client does not read.
  C10dPeer(std::shared_ptr<transport::EventLoop> loop, Descriptor socket, std::string address,
           uint64_t session, std::weak_ptr<Host> host, std::size_t max_unsent_bytes);

  // Opens the session. Must be called once, when the host knows the session.
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
  const std::weak_ptr<Host> host_;
  const std::size_t max_unsent_bytes_;
  C10dSession session_;
  // Whether a request is being handled. Its answers are then sent at its end.
  bool receiving_ = false;
  // The first error of an answer to it.
  absl::Status failure_;
};

}  // namespace gradwire::store
