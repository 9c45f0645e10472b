#include "gradwire/store/tcp/tcp_store_sessions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/log.h"
#include "gradwire/store/interface/limits.h"

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

// A client that speaks proto/store.proto.
class TcpStoreSessions::FramedPeer : public StorePeer {
 public:
  explicit FramedPeer(std::shared_ptr<transport::Connection> connection)
      : connection_(std::move(connection)) {}

  void send_in_loop(const proto::Response& response) override {
    // Ignore errors: a connection that has just ended reports that itself.
    (void)connection_->send({.header = response.SerializeAsString(), .buffers = {}});
  }
  void close_in_loop(const absl::Status& reason, absl::Duration flush) override {
    connection_->close(reason, flush);
  }
  std::size_t unsent_bytes() const override { return connection_->queued_bytes(); }
  std::string address() const override { return connection_->peer_address(); }

 private:
  const std::shared_ptr<transport::Connection> connection_;
};

TcpStoreSessions::TcpStoreSessions(std::shared_ptr<transport::EventLoop> loop, uint64_t number,
                                   std::size_t max_unread_bytes, C10dAdmission admission)
    : loop_(std::move(loop)),
      max_unread_bytes_(max_unread_bytes),
      admission_(std::move(admission)),
      service_(number, kMaxWaitingBytes, kMaxAllWaitingBytes, max_unread_bytes) {}

TcpStoreSessions::~TcpStoreSessions() = default;

std::shared_ptr<transport::ConnectionListener> TcpStoreSessions::accept_in_loop(
    const std::shared_ptr<transport::Connection>& connection) {
  if (stopped_) return nullptr;
  const Session session = next_session_++;
  peers_.emplace(session, std::make_shared<FramedPeer>(connection));
  return std::make_shared<Listener>(shared_from_this(), session);
}

void TcpStoreSessions::accept_c10d_in_loop(Descriptor socket, const std::string& peer) {
  if (stopped_ || !admission_.check_in_loop(socket.get(), peer).ok()) return;
  log(LogLevel::kDebug, "a client of PyTorch's TCPStore at ", peer, " has connected to the store");
  const Session session = next_session_++;
  auto client = std::make_shared<C10dPeer>(loop_, std::move(socket), peer, session, shared_from_this(),
                                           max_unread_bytes_);
  peers_.emplace(session, client);
  client->start_in_loop();
}

absl::Status TcpStoreSessions::call_in_loop(Session session, const proto::Request& request) {
  TcpStoreService::Answers answers;
  const absl::Status status = service_.handle(session, request, Clock::system().now(), answers);
  finish_in_loop(std::move(answers));
  return status;
}

void TcpStoreSessions::cancel_in_loop(Session session, uint64_t request) {
  TcpStoreService::Answers answers;
  service_.cancel(session, request, answers);
  finish_in_loop(std::move(answers));
}

int64_t TcpStoreSessions::add_workers_in_loop(int64_t n) {
  TcpStoreService::Answers answers;
  const int64_t workers = service_.add_workers(n, answers);
  finish_in_loop(std::move(answers));
  return workers;
}

void TcpStoreSessions::message_in_loop(Session session, const std::string& bytes) {
  // Not found after the connection has ended.
  const auto found = peers_.find(session);
  if (found == peers_.end()) return;
  proto::Request request;
  TcpStoreService::Answers answers;
  const bool parsed = request.ParseFromString(bytes);
  // Refuse before handling the request: producing an answer that the client does not read costs work, too.
  if (parsed && refuses_in_loop(session, request.id())) return;
  const absl::Status status =
      parsed ? service_.handle(session, request, Clock::system().now(), answers)
             : absl::InvalidArgumentError("malformed request: the peer is not a client of a Gradwire store");
  finish_in_loop(std::move(answers));
  if (!status.ok()) disconnect_in_loop(session, status);
}

void TcpStoreSessions::disconnect_in_loop(Session session, const absl::Status& reason) {
  const auto found = peers_.find(session);
  if (found == peers_.end()) return;
  log(LogLevel::kWarning, "the store closes the connection from ", found->second->address(), ": ",
      reason.message());
  // The entry stays until closed_in_loop(), which the transport calls after every close().
  found->second->close_in_loop(reason, absl::ZeroDuration());
}

void TcpStoreSessions::closed_in_loop(Session session) {
  const auto found = peers_.find(session);
  if (found == peers_.end()) return;
  peers_.erase(found);
  // Removes the client's waiters, so that no answer to this session is produced any more.
  TcpStoreService::Answers answers;
  service_.close(session, answers);
  finish_in_loop(std::move(answers));
  if (peers_.empty()) end_in_loop();
}

void TcpStoreSessions::expire_in_loop() {
  timer_ = 0;
  timer_time_ = absl::InfiniteFuture();
  TcpStoreService::Answers answers;
  service_.expire(Clock::system().now(), answers);
  finish_in_loop(std::move(answers));
}

void TcpStoreSessions::finish_in_loop(TcpStoreService::Answers answers) {
  // Update the number before sending the answers: a client that gets an answer may read it.
  num_waiters_ = service_.num_waiters();
  for (TcpStoreService::Answer& answer : answers) send_in_loop(std::move(answer));
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
  StorePeer& peer = *peers_.at(session);
  const std::size_t unread = peer.unsent_bytes();
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
  peer.send_in_loop(refusal);
  return true;
}

void TcpStoreSessions::send_in_loop(TcpStoreService::Answer answer) {
  const auto found = peers_.find(answer.session);
  if (found == peers_.end() || refuses_in_loop(answer.session, answer.response.id())) return;
  found->second->send_in_loop(complete(std::move(answer)));
}

void TcpStoreSessions::stop_in_loop(absl::Duration grace, std::function<void()> on_closed) {
  stopped_ = true;
  on_all_closed_ = std::move(on_closed);
  TcpStoreService::Answers answers;
  service_.stop(answers);
  finish_in_loop(std::move(answers));
  proto::Response farewell;
  farewell.set_stopping(true);
  for (const auto& [session, peer] : peers_) {
    peer->send_in_loop(farewell);
    peer->close_in_loop(absl::UnavailableError("the store's server stopped"), grace);
  }
  if (peers_.empty()) return end_in_loop();
  // A connection that was being closed already may take longer.
  grace_timer_ = loop_->schedule_in_loop(Clock::system().now() + grace, [weak = weak_from_this()] {
    const std::shared_ptr<TcpStoreSessions> self = weak.lock();
    if (self == nullptr) return;
    self->grace_timer_ = 0;
    self->end_in_loop();
  });
}

void TcpStoreSessions::end_in_loop() {
  loop_->cancel_in_loop(std::exchange(grace_timer_, 0));
  const std::function<void()> on_all_closed = std::exchange(on_all_closed_, nullptr);
  if (on_all_closed != nullptr) on_all_closed();
}

}  // namespace gradwire::store
