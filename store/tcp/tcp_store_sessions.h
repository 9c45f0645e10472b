#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/c10d/c10d_admission.h"
#include "gradwire/store/c10d/c10d_peer.h"
#include "gradwire/store/calls/store_peer.h"
#include "gradwire/store/tcp/tcp_store_service.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::store {

// Carries requests and answers between the clients of a TcpStore's server, also those of PyTorch's protocol,
// and its TcpStoreService, and calls the service when a deadline passes.
//
// Use only on the thread that drives the loop, except num_waiters(). Shared by the listeners of its
// connections, so it exists as long as the last of them.
class TcpStoreSessions : public C10dPeer::Host, public std::enable_shared_from_this<TcpStoreSessions> {
 public:
  // `number` identifies the server; it is random and not 0. `max_unread_bytes`: see TcpStoreServerOptions.
  // `admission` decides which clients of PyTorch's TCPStore are served.
  TcpStoreSessions(std::shared_ptr<transport::EventLoop> loop, uint64_t number, std::size_t max_unread_bytes,
                   C10dAdmission admission = C10dAdmission({}));
  ~TcpStoreSessions() override;

  // Returns the listener for a new connection; null after stop_in_loop().
  std::shared_ptr<transport::ConnectionListener> accept_in_loop(
      const std::shared_ptr<transport::Connection>& connection);
  // Takes over the socket of a client of PyTorch's TCPStore, from which the greeting has been read. Closes it
  // if the client is not admitted; nothing else is read from it then.
  void accept_c10d_in_loop(Descriptor socket, const std::string& peer);
  // Answers all waiting requests with Unavailable. Closes each connection when its answers have been sent or
  // `grace` is over. Calls `on_closed` when no connection is left or `grace` is over; possibly inside this
  // call.
  void stop_in_loop(absl::Duration grace, std::function<void()> on_closed);

  std::size_t num_waiters() const { return num_waiters_.load(); }

 private:
  class Listener;
  class FramedPeer;
  using Session = TcpStoreService::Session;

  // C10dPeer::Host
  absl::Status call_in_loop(Session session, const proto::Request& request) override;
  void cancel_in_loop(Session session, uint64_t request) override;
  int64_t add_workers_in_loop(int64_t n) override;
  void closed_in_loop(Session session) override;

  void message_in_loop(Session session, const std::string& bytes);
  void expire_in_loop();
  // Whether the session has too many unread answers. Then a refusal has been sent, or the connection closed.
  bool refuses_in_loop(Session session, uint64_t request);
  void disconnect_in_loop(Session session, const absl::Status& reason);
  // Sends the answers and sets the timer again. Must follow every call that changes the service's state.
  void finish_in_loop(TcpStoreService::Answers answers);
  void send_in_loop(TcpStoreService::Answer answer);
  // Calls on_all_closed_, once.
  void end_in_loop();

  const std::shared_ptr<transport::EventLoop> loop_;
  const std::size_t max_unread_bytes_;
  C10dAdmission admission_;
  TcpStoreService service_;
  HashMap<Session, std::shared_ptr<StorePeer>> peers_;
  Session next_session_ = 1;
  uint64_t timer_ = 0;
  absl::Time timer_time_ = absl::InfiniteFuture();
  bool stopped_ = false;
  // Set from stop_in_loop() until it is called.
  std::function<void()> on_all_closed_;
  uint64_t grace_timer_ = 0;

  std::atomic<std::size_t> num_waiters_{0};
};

}  // namespace gradwire::store
