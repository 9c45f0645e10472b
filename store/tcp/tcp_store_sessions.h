#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "gradwire/store/tcp/tcp_store_service.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::store {

// Carries requests and answers between the connections of a TcpStore's server and its TcpStoreService, and
// tells the service the time.
//
// Belongs to the driver of the loop, but for num_waiters(). Shared by the listeners of its connections, so it
// lives as long as the last of those.
class TcpStoreSessions : public std::enable_shared_from_this<TcpStoreSessions> {
 public:
  // `number`: the server's, random and not 0. `max_unread_bytes`: see TcpStoreServerOptions.
  TcpStoreSessions(std::shared_ptr<transport::EventLoop> loop, uint64_t number, std::size_t max_unread_bytes);
  ~TcpStoreSessions();

  // Who hears of a connection that came in; nullptr once stopped.
  std::shared_ptr<transport::ConnectionListener> accept_in_loop(
      const std::shared_ptr<transport::Connection>& connection);
  // Answers what waits with Unavailable and hangs up on everybody, when all has left or `grace` is over.
  void stop_in_loop(absl::Duration grace);

  std::size_t num_waiters() const { return num_waiters_.load(); }

 private:
  class Listener;
  using Session = TcpStoreService::Session;
  void message_in_loop(Session session, const std::string& bytes);
  void closed_in_loop(Session session);
  void expire_in_loop();
  // Whether the session has too much to read already; then it has been told, or hung up on.
  bool refuses_in_loop(Session session, uint64_t request);
  void hang_up_in_loop(Session session, const absl::Status& reason);
  // Sends the answers and sets the alarm anew: after everything that the service was told.
  void finish_in_loop(const TcpStoreService::Answers& answers);
  void send_in_loop(Session session, const proto::Response& response);

  const std::shared_ptr<transport::EventLoop> loop_;
  const std::size_t max_unread_bytes_;
  TcpStoreService service_;
  absl::flat_hash_map<Session, std::shared_ptr<transport::Connection>> connections_;
  Session next_session_ = 1;
  uint64_t alarm_ = 0;
  absl::Time alarm_time_ = absl::InfiniteFuture();
  bool stopped_ = false;

  std::atomic<std::size_t> num_waiters_{0};
};

}  // namespace gradwire::store
