#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/admission/admission.h"
#include "gradwire/transport/tcp/receiver.h"
#include "gradwire/transport/tcp/secure/opening.h"
#include "gradwire/transport/tcp/secure/secured_socket.h"
#include "gradwire/transport/tcp/send/sender.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/address_search.h"
#include "gradwire/transport/tcp/stripes.h"
#include "gradwire/transport/tcp/tcp_context.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire::transport {

// One end of a TCP connection: a socket, and stripes (stripe.h) while large buffers are sent. An
// AddressSearch finds the addresses and a TcpOpening opens the connection, or it was accepted. Then a sender
// and a receiver use the socket, or the stream that encrypts its bytes.
//
// Reading, timers and callbacks happen only on the loop's driver. Any thread with data to write may write
// (send/sender.h). A flush lasts until the queue has been written and the peer has read it.
class TcpConnection : public LoopConnection, public EventHandler {
 public:
  TcpConnection(std::shared_ptr<TcpContext> context, std::string peer_address, const Preface::Token& token);

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override;
  void capture(uint64_t ticket) override { sender_.capture(ticket); }
  bool borrows(uint64_t ticket) override { return sender_.borrows(ticket); }
  // Returns warm memory of the pool. It is sent like any other memory.
  absl::StatusOr<Buffer> allocate(std::size_t size) override { return context_->pool->allocate(size); }
  std::size_t queued_bytes() override { return sender_.queued_bytes(); }
  uint64_t bytes_arrived() const override { return receiver_.bytes_arrived() + stripes_.bytes_arrived(); }
  security::PeerIdentity peer() const override;

  // Prepares the connecting end. Must be called before send(): without a handshake the preface is queued as
  // the first bytes.
  void begin_with_preface();
  // Looks up the names among the addresses, and tries the addresses in order, until `deadline`.
  void connect_in_loop(std::vector<HostAddress> addresses, std::shared_ptr<ConnectionListener> listener,
                       absl::Time deadline);
  // Takes an accepted socket, which has this place. From then on messages can be sent, but none is received
  // before listen_in_loop().
  void adopt_in_loop(SecuredSocket socket, Admission::Id place);
  void listen_in_loop(std::shared_ptr<ConnectionListener> listener);
  // Registers a stripe whose preface had the token of this connection.
  void join_stripe_in_loop(const Preface& preface, Descriptor socket) {
    stripes_.join_in_loop(preface, std::move(socket));
  }

 private:
  // EventHandler
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status& error) override { fail_in_loop(error); }

  // LoopConnection
  void drained_in_loop() override;
  void lost_in_loop(absl::string_view cause) override;
  void refuse_sends(const absl::Status& reason) override { sender_.refuse(reason); }
  void flush_in_loop() override;
  void release_in_loop(const absl::Status& reason) override;

  Preface preface() const;
  void found_in_loop(absl::StatusOr<std::vector<SocketAddress>> found, absl::Time deadline);
  void open_in_loop(std::vector<SocketAddress> addresses, absl::Time deadline);
  void opened_in_loop(absl::StatusOr<SecuredSocket> socket);
  // Starts the sender and the receiver on the socket.
  void start_in_loop(SecuredSocket socket);
  void watch_in_loop();

  const std::shared_ptr<TcpContext> context_;
  const Preface::Token token_;
  TcpSender sender_;

  mutable Mutex mutex_;
  security::PeerIdentity peer_ ABSL_GUARDED_BY(mutex_);

  // The members below are used only by the loop's driver.
  std::shared_ptr<AddressSearch> search_;
  std::shared_ptr<TcpOpening> opening_;
  Descriptor socket_;
  // nullptr: bytes travel as they are.
  std::shared_ptr<security::SecureStream> stream_;
  // The place of an accepted connection.
  Admission::Id place_ = 0;
  uint64_t handler_id_ = 0;
  bool lingering_ = false;
  TcpStripes stripes_;
  TcpReceiver receiver_;
};

}  // namespace gradwire::transport
