#include "gradwire/store/c10d/c10d_client.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/store/c10d/c10d_calls.h"
#include "gradwire/store/calls/pause.h"
#include "gradwire/transport/refused.h"

namespace gradwire::store {
namespace {

// The same times as in the client of Gradwire's own protocol.
constexpr absl::Duration kMinCallTime = absl::Seconds(1);
constexpr absl::Duration kReconnectFor = absl::Seconds(5);
constexpr absl::Duration kRefusedFor = absl::Milliseconds(400);
constexpr absl::Duration kPause = absl::Milliseconds(20);
constexpr std::size_t kMaxIdle = 4;

}  // namespace

absl::Status C10dClient::named(const absl::Status& status) const {
  return with_context(status, options_.name);
}

std::optional<C10dSocket> C10dClient::find_server(const C10dTarget& target, Clock& clock,
                                                  absl::Time deadline) {
  C10dSocket::Server server;
  absl::StatusOr<C10dSocket> socket = C10dSocket::open(target, clock, deadline, server);
  if (!socket.ok() || server != C10dSocket::Server::kTorch) return std::nullopt;
  return *std::move(socket);
}

absl::StatusOr<C10dSocket> C10dClient::take(absl::Time deadline) {
  while (true) {
    std::vector<C10dSocket> taken;
    {
      MutexLock lock(mutex_);
      if (idle_.empty()) break;
      taken.push_back(std::move(idle_.back()));
      idle_.pop_back();
    }
    if (!taken.front().is_stale()) return std::move(taken.front());
  }
  C10dSocket::Server server;
  GRADWIRE_ASSIGN_OR_RETURN(C10dSocket socket, C10dSocket::open(options_.target, clock_, deadline, server));
  if (server == C10dSocket::Server::kTorch) return socket;
  return absl::AbortedError(
      "the store's server, which was one of PyTorch, has been replaced by one of Gradwire; its keys are "
      "lost");
}

void C10dClient::keep(C10dSocket socket) {
  MutexLock lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(socket));
}

absl::Status C10dClient::join(absl::Time deadline) {
  const BlockingScope blocking;
  GRADWIRE_RETURN_IF_ERROR(blocking.status());
  absl::StatusOr<C10dSocket> socket = take(deadline);
  if (!socket.ok()) return named(socket.status());
  std::string query(1, static_cast<char>(C10dQuery::kAdd));
  put_c10d_string(query, kC10dWorkersKey);
  put_c10d_number(query, 1, 8);
  absl::Status status = socket->send(query, deadline);
  if (status.ok()) status = socket->read_number(deadline).status();
  if (status.ok()) keep(*std::move(socket));
  return named(status);
}

// A call is repeated if the server has not seen it, or if its kind permits it.
absl::StatusOr<StoreCaller::Answer> C10dClient::call(proto::Request& request, absl::Time deadline,
                                                     Kind kind) {
  const BlockingScope blocking;
  GRADWIRE_RETURN_IF_ERROR(blocking.status());
  const bool once = kind == Kind::kOnce || kind == Kind::kWaitingOnce;
  const absl::Time until = std::max(deadline, clock_.now() + kMinCallTime);
  absl::Time give_up = absl::InfiniteFuture();
  while (true) {
    const absl::Time start = clock_.now();
    absl::StatusOr<C10dSocket> socket = take(until);
    absl::Status status = socket.status();
    bool may_repeat = !socket.ok();
    if (socket.ok()) {
      auto response = std::make_shared<proto::Response>();
      bool broken;
      status =
          C10dCalls(*socket, clock_, kind == Kind::kWaiting || kind == Kind::kWaitingOnce ? deadline : until)
              .run(request, *response, broken);
      if (!broken) keep(*std::move(socket));
      if (status.ok()) return Answer(std::move(response));
      if (broken && absl::IsUnavailable(status)) status = explain(request, status, until);
      may_repeat = !once;
    }
    if (!may_repeat || !(absl::IsUnavailable(status) || is_local_shortage(status))) return named(status);
    log(LogLevel::kInfo, "repeats a call to the ", options_.name, ": ", status.message());
    const absl::Time now = clock_.now();
    // After a connection that lasted for a while, start counting anew.
    if (now - start > kReconnectFor) give_up = absl::InfiniteFuture();
    give_up = std::min(give_up, now + (transport::is_refused(status) ? kRefusedFor : kReconnectFor));
    if (now + kPause >= std::min(until, give_up)) return named(status);
    pause_until(clock_, now + kPause);
  }
}

// The server has no error answers. It closes the connection at an add to a text, and a server without libuv
// at each call for a queue.
absl::Status C10dClient::explain(const proto::Request& request, const absl::Status& status,
                                 absl::Time deadline) {
  const bool queue = request.has_queue_push() || request.has_queue_pop() || request.has_queue_len();
  if (!queue && !request.has_add()) return status;
  absl::StatusOr<C10dSocket> socket = take(deadline);
  if (!socket.ok()) return status;
  if (queue) {
    return absl::FailedPreconditionError(
        "the server closed the connection at a call for a queue: PyTorch's TCPStore has queues only with "
        "use_libuv=True");
  }
  proto::Request get;
  get.mutable_watch()->set_key(request.add().key());
  proto::Response response;
  bool broken;
  const absl::Status read = C10dCalls(*socket, clock_, clock_.now()).run(get, response, broken);
  if (!broken) keep(*std::move(socket));
  int64_t number;
  if (!read.ok() || !response.watch().has_value() || absl::SimpleAtoi(response.watch().value(), &number)) {
    return status;
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot add to the key: its value of ",
                                                 response.watch().value().size(),
                                                 " bytes is not a decimal number"));
}

}  // namespace gradwire::store
