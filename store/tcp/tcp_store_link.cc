// One connection to the server, with the calls that wait for an answer. An entry of calls_ is removed by
// exactly one of these: its answer, its caller (forget), or the end of the connection (close). The one that
// removes it may complete the promise.

#include "gradwire/store/tcp/tcp_store_link.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::store {

void TcpStoreLink::attach(std::shared_ptr<transport::Connection> connection) {
  MutexLock lock(mutex_);
  // The connection may already have ended.
  // Then on_closed() came first. Storing the connection would create a reference cycle that no call breaks.
  if (status_.ok()) connection_ = std::move(connection);
}

absl::StatusOr<TcpStoreLink::Sent> TcpStoreLink::send(proto::Request& request) {
  Promise<Answer> promise(executor_);
  std::shared_ptr<transport::Connection> connection;
  uint64_t id;
  {
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    id = next_id_++;
    // Before sending: the answer may arrive before send() returns.
    calls_.emplace(id, promise);
    connection = connection_;
  }
  request.set_id(id);
  transport::Message message;
  message.header = request.SerializeAsString();
  const absl::StatusOr<uint64_t> sent = connection->send(std::move(message));
  if (!sent.ok()) {
    forget(id);
    return sent.status();
  }
  return Sent{id, promise.future()};
}

void TcpStoreLink::forget(uint64_t id) {
  // Declared before the lock, so that the promise is destroyed without it.
  decltype(calls_)::node_type forgotten;
  MutexLock lock(mutex_);
  forgotten = calls_.extract(id);
}

void TcpStoreLink::close(absl::Status reason) {
  decltype(calls_) calls;
  std::shared_ptr<transport::Connection> connection;
  {
    MutexLock lock(mutex_);
    if (status_.ok()) status_ = reason;
    calls.swap(calls_);
    connection.swap(connection_);
  }
  // Outside the lock: completing a promise runs continuations, which may use this link.
  if (connection != nullptr) connection->close(reason);
  for (const auto& [id, promise] : calls) promise.set_error(reason);
}

absl::Status TcpStoreLink::status() const {
  MutexLock lock(mutex_);
  return status_;
}

bool TcpStoreLink::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

void TcpStoreLink::on_message(transport::Connection&, transport::Message message) {
  auto response = std::make_shared<proto::Response>();
  if (!response->ParseFromString(message.header)) {
    close(absl::FailedPreconditionError("the server at this address is not a Gradwire store"));
    return;
  }
  decltype(calls_)::node_type call;
  {
    MutexLock lock(mutex_);
    if (response->stopping()) stopping_ = true;
    // Not found if the caller has given up, or for the message that announces the stop (id 0).
    call = calls_.extract(response->id());
  }
  if (!call.empty()) call.mapped().set_value(std::move(response));
}

void TcpStoreLink::on_closed(transport::Connection&, absl::Status reason) {
  if (absl::IsInvalidArgument(reason)) {
    reason = absl::FailedPreconditionError(
        absl::StrCat("the server at this address is not a Gradwire store (", reason.message(), ")"));
  }
  close(std::move(reason));
}

}  // namespace gradwire::store
