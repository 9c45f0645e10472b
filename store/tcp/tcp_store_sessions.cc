#include "gradwire/store/tcp/tcp_store_sessions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {

class TcpStoreSessions::Listener : public transport::ConnectionListener {
 public:
  Listener(std::shared_ptr<TcpStoreSessions> sessions, Session session)
      : sessions_(std::move(sessions)), session_(session) {}

  void on_message(transport::Connection&, transport::Message message) override {
    sessions_->message_in_loop(session_, message.header);
  }
  // A client that has sent Hello may be silent from now on.
  // The transport closes connections whose listener is not introduced in time.
  bool introduced() const override { return sessions_->service_.greeted(session_); }
  void on_closed(transport::Connection&, absl::Status) override { sessions_->closed_in_loop(session_); }

 private:
  const std::shared_ptr<TcpStoreSessions> sessions_;
  const Session session_;
};

TcpStoreSessions::TcpStoreSessions(std::shared_ptr<transport::EventLoop> loop, uint64_t number,
                                   std::size_t max_unread_bytes)
    : loop_(std::move(loop)), max_unread_bytes_(max_unread_bytes), service_(number) {}

TcpStoreSessions::~TcpStoreSessions() = default;

std::shared_ptr<transport::ConnectionListener> TcpStoreSessions::accept_in_loop(
    const std::shared_ptr<transport::Connection>& connection) {
  if (stopped_) return nullptr;
  const Session session = next_session_++;
  connections_.emplace(session, connection);
  return std::make_shared<Listener>(shared_from_this(), session);
}

void TcpStoreSessions::message_in_loop(Session session, const std::string& bytes) {
  // Not found after the connection has ended.
  const auto found = connections_.find(session);
  if (found == connections_.end()) return;
  proto::Request request;
  TcpStoreService::Answers answers;
  const bool parsed = request.ParseFromString(bytes);
  // Refuse before handling the request: producing an answer that the client does not read costs work, too.
  if (parsed && refuses_in_loop(session, request.id())) return;
  const absl::Status status =
      parsed ? service_.handle(session, request, Clock::system().now(), answers)
             : absl::InvalidArgumentError("malformed request: the peer is not a client of a Gradwire store");
  finish_in_loop(answers);
  if (!status.ok()) disconnect_in_loop(session, status);
}

void TcpStoreSessions::disconnect_in_loop(Session session, const absl::Status& reason) {
  const auto found = connections_.find(session);
  if (found == connections_.end()) return;
  log(LogLevel::kWarning, "the store closes the connection from ", found->second->peer_address(), ": ",
      reason.message());
  // The entry stays until closed_in_loop(), which the transport calls after every close().
  found->second->close(reason);
}

void TcpStoreSessions::closed_in_loop(Session session) {
  const auto found = connections_.find(session);
  if (found == connections_.end()) return;
  connections_.erase(found);
  // Removes the client's waiters, so that no answer to this session is produced any more.
  service_.close(session);
  finish_in_loop({});
}

void TcpStoreSessions::expire_in_loop() {
  timer_ = 0;
  timer_time_ = absl::InfiniteFuture();
  TcpStoreService::Answers answers;
  service_.expire(Clock::system().now(), answers);
  finish_in_loop(answers);
}

void TcpStoreSessions::finish_in_loop(const TcpStoreService::Answers& answers) {
  // Update the number before sending the answers: a client that gets an answer may read it.
  num_waiters_ = service_.num_waiters();
  for (const TcpStoreService::Answer& answer : answers) send_in_loop(answer.session, answer.response);
  const absl::Time deadline = service_.next_deadline();
  if (deadline == timer_time_) return;
  loop_->cancel_in_loop(timer_);
  timer_time_ = deadline;
  // A weak reference: a waiting call of a client must not keep the sessions alive after the server's end.
  timer_ = loop_->schedule_in_loop(deadline, [weak = weak_from_this()] {
    if (const std::shared_ptr<TcpStoreSessions> self = weak.lock()) self->expire_in_loop();
  });
}

// A client that sends requests but does not read the answers makes this process keep them. So above
// max_unread_bytes_ its requests get only a short refusal, and when even the refusals take kMaxRefusalBytes
// it is disconnected.
bool TcpStoreSessions::refuses_in_loop(Session session, uint64_t request) {
  transport::Connection& connection = *connections_.at(session);
  const std::size_t unread = connection.queued_bytes();
  if (unread <= max_unread_bytes_) return false;
  if (unread > max_unread_bytes_ + kMaxRefusalBytes) {
    disconnect_in_loop(session, absl::ResourceExhaustedError(
                                    "the client goes on sending requests but does not read the answers"));
    return true;
  }
  proto::Response refusal;
  refusal.set_id(request);
  refusal.set_code(static_cast<int32_t>(absl::StatusCode::kResourceExhausted));
  refusal.set_message(absl::StrCat("request refused: the client has ", unread, " bytes of unread answers"));
  (void)connection.send({.header = refusal.SerializeAsString(), .buffers = {}});
  return true;
}

void TcpStoreSessions::send_in_loop(Session session, const proto::Response& response) {
  const auto found = connections_.find(session);
  if (found == connections_.end() || refuses_in_loop(session, response.id())) return;
  // Ignore errors: a connection that has just ended reports that itself.
  (void)found->second->send({.header = response.SerializeAsString(), .buffers = {}});
}

void TcpStoreSessions::stop_in_loop(absl::Duration grace) {
  stopped_ = true;
  TcpStoreService::Answers answers;
  service_.stop(answers);
  finish_in_loop(answers);
  proto::Response farewell;
  farewell.set_stopping(true);
  for (const auto& [session, connection] : connections_) {
    (void)connection->send({.header = farewell.SerializeAsString(), .buffers = {}});
    connection->close(absl::UnavailableError("the store's server stopped"), grace);
  }
}

}  // namespace gradwire::store
