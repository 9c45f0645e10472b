#include "gradwire/rpc/inspect/worker_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/link/handshake.h"

// Messages are sent without the lock, because the transport may wait for the thread that calls on_message().
namespace gradwire::rpc {
namespace {

// An answer has an envelope around the state.
constexpr uint64_t kMaxAnswer = kMaxInspectionBytes + (uint64_t{64} << 10);

}  // namespace

void WorkerConnection::open(std::shared_ptr<transport::Connection> connection, const std::string& name) {
  proto::Envelope envelope;
  proto::Hello& hello = *envelope.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_name(name);
  hello.set_to_incarnation(incarnation_);
  hello.set_observer(true);
  {
    MutexLock lock(mutex_);
    connection_ = connection;
  }
  // If the send fails, on_closed() follows.
  (void)connection->send({envelope.SerializeAsString(), {}});
}

std::string WorkerConnection::question_locked() const {
  proto::Envelope envelope;
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(question_);
  request.mutable_service()->set_number(kInspect);
  request.mutable_service()->set_body(body_);
  return envelope.SerializeAsString();
}

void WorkerConnection::ask(uint64_t number, std::string body) {
  std::string message;
  std::shared_ptr<transport::Connection> connection;
  {
    MutexLock lock(mutex_);
    question_ = number;
    body_ = std::move(body);
    asked_ = absl::Now();
    answer_.reset();
    unsent_ = !greeted_;
    if (unsent_ || !ended_.ok()) return;
    message = question_locked();
    connection = connection_;
  }
  (void)connection->send({std::move(message), {}});
}

absl::StatusOr<proto::AgentState> WorkerConnection::wait(uint64_t number, absl::Time deadline) {
  MutexLock lock(mutex_);
  while (question_ == number && !answer_ && ended_.ok()) {
    const absl::Time now = Clock::system().now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(greeted_ ? "the worker accepted the observer, but does not answer"
                                                  : "the worker does not answer");
    }
    changed_.wait_for(mutex_, deadline - now);
  }
  if (question_ != number) return absl::CancelledError("another question was asked");
  if (answer_) return *std::exchange(answer_, std::nullopt);
  return ended_;
}

Exchange WorkerConnection::last_exchange() const {
  MutexLock lock(mutex_);
  return last_exchange_;
}

bool WorkerConnection::ended() const {
  MutexLock lock(mutex_);
  return !ended_.ok();
}

void WorkerConnection::close() {
  std::shared_ptr<transport::Connection> connection;
  {
    MutexLock lock(mutex_);
    connection = connection_;
  }
  if (connection != nullptr) connection->close(absl::CancelledError("the observer goes"));
}

uint64_t WorkerConnection::max_message_bytes() const { return kMaxAnswer; }

absl::Status WorkerConnection::receive_locked(const proto::Envelope& envelope) {
  switch (envelope.body_case()) {
    case proto::Envelope::kHello:
      if (greeted_ || envelope.hello().incarnation() != incarnation_) {
        return absl::InvalidArgumentError("malformed Hello of a worker");
      }
      greeted_ = true;
      return absl::OkStatus();
    case proto::Envelope::kGoodbye: {
      const absl::Status reason = status_from_proto(envelope.goodbye().reason());
      if (absl::IsNotFound(reason)) {
        return absl::UnavailableError(
            "the worker does not know observers: it runs an older version of Gradwire");
      }
      return reason.ok() || absl::IsCancelled(reason) ? absl::UnavailableError("the worker has left")
                                                      : reason;
    }
    case proto::Envelope::kResponse:
      if (!greeted_) break;
      return receive_answer_locked(envelope.response());
    default:
      break;
  }
  return absl::InvalidArgumentError("got an unexpected message: the peer may not be a Gradwire worker");
}

absl::Status WorkerConnection::receive_answer_locked(const proto::Response& response) {
  // The answer to a question that was given up.
  if (response.call_id() < question_) return absl::OkStatus();
  if (response.call_id() != question_ || unsent_ || answer_) {
    return absl::InvalidArgumentError("got an answer to a question that was not asked");
  }
  const absl::Status status = status_from_proto(response.status());
  if (!status.ok()) {
    answer_ = status;
    return absl::OkStatus();
  }
  proto::AgentState state;
  if (!state.ParseFromString(response.body())) {
    return absl::InvalidArgumentError("cannot parse the state of the worker");
  }
  answer_ = std::move(state);
  last_exchange_ = {asked_, absl::Now()};
  return absl::OkStatus();
}

void WorkerConnection::on_message(transport::Connection& connection, transport::Message message) {
  proto::Envelope envelope;
  absl::Status received =
      absl::InvalidArgumentError("cannot parse a message: the peer may not be a Gradwire worker");
  std::string question;
  if (message.buffers.empty() && message.header.size() <= kMaxAnswer &&
      envelope.ParseFromString(message.header)) {
    MutexLock lock(mutex_);
    received = receive_locked(envelope);
    if (received.ok() && greeted_ && std::exchange(unsent_, false)) question = question_locked();
    changed_.notify_all();
  }
  if (!received.ok()) return connection.close(received);
  if (!question.empty()) (void)connection.send({std::move(question), {}});
}

void WorkerConnection::on_closed(transport::Connection&, absl::Status reason) {
  MutexLock lock(mutex_);
  ended_ = reason.ok() ? absl::UnavailableError("the connection has ended") : std::move(reason);
  connection_ = nullptr;
  changed_.notify_all();
}

}  // namespace gradwire::rpc
