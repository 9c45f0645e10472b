#include "gradwire/store/tcp/tcp_store_client.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/calls/pause.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/transport/refused.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::store {

// An entry of calls_ is removed by exactly one of these: its answer, its caller (forget), or the end of the
// connection (close). The one that removes it may complete the promise.
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

namespace {

// Minimum time given to a call that need not wait, even if its deadline is sooner or has passed.
constexpr absl::Duration kMinCallTime = absl::Seconds(1);
// How much longer than the timeout of a waiting call the client waits for the server's answer.
constexpr absl::Duration kAnswerTime = absl::Seconds(5);
// Limit for one attempt to connect and to exchange Hello.
constexpr absl::Duration kDialTime = absl::Seconds(5);
// A connection that is not established within the time of the attempt ends with the cause. So much longer the
// client waits for that report.
constexpr absl::Duration kReportTime = absl::Milliseconds(100);
// After this time without an answer to the first Hello, the client sends more, to make another server react.
constexpr absl::Duration kSilence = absl::Milliseconds(100);
constexpr absl::Duration kMinPause = absl::Milliseconds(10);
constexpr absl::Duration kMaxPause = absl::Milliseconds(300);

std::unique_ptr<transport::Transport> make_transport(const StoreLoop& loop,
                                                     const TcpStoreClient::Options& options) {
  transport::TcpOptions tcp;
  tcp.limits = store_message_limits();
  tcp.credentials = options.credentials;
  tcp.allowed_users = options.allowed_users;
  tcp.purpose = kStorePurpose;
  return transport::make_tcp_transport(tcp, loop.loop());
}

// The address to connect to. As in the server, localhost means 127.0.0.1.
std::string address_of(const Endpoint& endpoint) {
  return to_string(absl::EqualsIgnoreCase(endpoint.host, "localhost") ? Endpoint{"127.0.0.1", endpoint.port}
                                                                      : endpoint);
}

int64_t to_timeout_us(absl::Duration left) {
  if (left == absl::InfiniteDuration()) return -1;
  return std::max<int64_t>(0, absl::ToInt64Microseconds(left));
}

absl::Status status_of(const proto::Response& response) {
  if (response.code() == 0) return absl::OkStatus();
  constexpr std::size_t kLongestMessage = 4096;
  const bool known =
      response.code() > 0 && response.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(response.code()) : absl::StatusCode::kUnknown,
                      absl::string_view(response.message()).substr(0, kLongestMessage));
}

}  // namespace

TcpStoreClient::TcpStoreClient(Options options, std::shared_ptr<StoreLoop> loop, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      id_(random_id()),
      loop_(std::move(loop)),
      transport_(make_transport(*loop_, options_)) {}

TcpStoreClient::~TcpStoreClient() { transport_->shutdown(); }

absl::Status TcpStoreClient::named(const absl::Status& status) const {
  return with_context(status, options_.name);
}

// The thread may belong to a pool; the BlockingScope lets another thread take its place.
absl::Status TcpStoreClient::pause(absl::Duration duration) {
  BlockingScope blocking;
  GRADWIRE_RETURN_IF_ERROR(blocking.status());
  pause_until(clock_, clock_.now() + duration);
  return absl::OkStatus();
}

absl::Status TcpStoreClient::greet(TcpStoreLink& link, absl::Duration timeout) {
  proto::Request request;
  proto::HelloRequest& hello = *request.mutable_hello();
  hello.set_magic(kStoreMagic);
  hello.set_version(kStoreVersion);
  hello.set_server(server_);
  hello.set_client(id_);
  hello.set_world_size(options_.world_size);
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Sent sent, link.send(request));
  // PyTorch's TCPStore ignores the first bytes if it does not understand them, and closes the connection at
  // the next. A server of Gradwire answers this call after Hello.
  if (server_ == 0 && options_.is_other_server != nullptr &&
      !sent.answer.wait_for(std::min(timeout, kSilence))) {
    proto::Request more;
    more.mutable_num_keys();
    if (const auto second = link.send(more); second.ok()) link.forget(second->id);
  }
  if (!sent.answer.wait_for(timeout + kReportTime)) {
    return absl::UnavailableError(
        absl::StrCat("the server accepted the connection but did not answer within ",
                     absl::FormatDuration(absl::Trunc(timeout, absl::Milliseconds(1))),
                     ": it hangs, or is not a Gradwire store"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer, sent.answer.result());
  GRADWIRE_RETURN_IF_ERROR(status_of(*answer));
  if (!answer->has_hello() || answer->hello().magic() != kStoreMagic || answer->hello().server() == 0) {
    return absl::FailedPreconditionError("the server at this address is not a Gradwire store");
  }
  // The first server that answers becomes the server of this client. After a reconnection the number must
  // be the same: another server has other keys.
  uint64_t none = 0;
  if (!server_.compare_exchange_strong(none, answer->hello().server()) && none != answer->hello().server()) {
    return absl::AbortedError("the store's server has been replaced by another one; its keys are lost");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TcpStoreLink>> TcpStoreClient::dial_once(absl::Duration timeout) {
  const absl::Time start = clock_.now();
  auto link = std::make_shared<TcpStoreLink>(loop_->executor());
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<transport::Connection> connection,
                            transport_->connect(address_of(options_.endpoint), link, timeout));
  link->attach(std::move(connection));
  const absl::Status greeted = greet(*link, std::max(kMinCallTime, timeout - (clock_.now() - start)));
  if (!greeted.ok()) {
    link->close(greeted);
    return greeted;
  }
  log(LogLevel::kInfo, "connected to the ", options_.name);
  return link;
}

absl::Duration TcpStoreClient::timeout(absl::Duration left, bool stopped) const {
  if (server_ == 0) return left;
  return stopped ? absl::ZeroDuration() : std::clamp(left, kMinCallTime, kReconnectFor);
}

absl::StatusOr<std::shared_ptr<TcpStoreLink>> TcpStoreClient::dial(absl::Time start, absl::Duration timeout) {
  absl::Duration next_pause = kMinPause;
  Progress progress({.clock = &clock_, .once_per_host = true});
  while (true) {
    const absl::Duration left = timeout - (clock_.now() - start);
    absl::StatusOr<std::shared_ptr<TcpStoreLink>> link = dial_once(std::clamp(left, kMinCallTime, kDialTime));
    if (link.ok()) return link;
    // Only a server that cannot be reached is worth another attempt, and a shortage of this process, which
    // may pass.
    const bool shortage = is_local_shortage(link.status());
    if (!absl::IsUnavailable(link.status()) && !shortage) return named(link.status());
    if (server_ == 0 && options_.is_other_server != nullptr && !shortage &&
        !transport::is_refused(link.status()) &&
        options_.is_other_server(std::max(timeout - (clock_.now() - start), kMinCallTime))) {
      return absl::FailedPreconditionError(kOtherServer);
    }
    if (server_ != 0 && transport::is_refused(link.status())) timeout = std::min(timeout, kRefusedFor);
    const absl::Duration waited = clock_.now() - start;
    if (waited + next_pause >= timeout) {
      if (shortage) return named(link.status());
      return absl::UnavailableError(
          absl::StrCat(options_.name, ": cannot connect: tried for ",
                       absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))), " (",
                       link.status().message(), ")",
                       server_ == 0 ? "; check that its server has been started and that this is its address"
                                    : "; its server has ended"));
    }
    progress.update([&] {
      return ProgressState{
          .text = absl::StrCat("waiting for the ", options_.name, ": ", link.status().message())};
    });
    GRADWIRE_RETURN_IF_ERROR(pause(next_pause));
    next_pause = std::min(next_pause * 2, kMaxPause);
  }
}

// Several threads may need a connection at once, but only one may dial; the others wait for it.
// 1. If the link is open, return it.
// 2. If no thread is dialling, become the dialling thread (`dialling_`).
// 3. Otherwise wait until that thread has ended, then start again at 1. Return its error, unless it only
//    ran out of a time that was shorter than this thread's.
// 4. The dialling thread publishes the link, or its error in `dial_failure_`, and wakes the others. If it
//    throws, another thread dials.
absl::StatusOr<std::shared_ptr<TcpStoreLink>> TcpStoreClient::open_link(absl::Time deadline) {
  const absl::Time start = clock_.now();
  absl::Duration limit;
  while (true) {
    {
      MutexLock lock(mutex_);
      if (link_ != nullptr && link_->status().ok()) return link_;
      limit = timeout(deadline - start, link_ != nullptr && link_->stopping());
      if (!dialling_) {
        dialling_ = true;
        break;
      }
    }
    BlockingScope blocking;
    GRADWIRE_RETURN_IF_ERROR(blocking.status());
    // Wait at least as long as the dialling thread would: a short deadline is extended.
    const absl::Time end = start + std::max(limit, kMinCallTime);
    MutexLock lock(mutex_);
    while (dialling_ && clock_.now() < end) clock_.wait_until(mutex_, dial_ended_, end);
    if (dialling_) return named(absl::UnavailableError("cannot connect before the deadline"));
    // The dialling thread may have had an earlier deadline than this thread; then try again.
    if (!dial_failure_.ok() && (!absl::IsUnavailable(dial_failure_) || clock_.now() >= end))
      return dial_failure_;
  }
  absl::StatusOr<std::shared_ptr<TcpStoreLink>> link = nullptr;
  {
    const absl::Cleanup ended = [&] {
      MutexLock lock(mutex_);
      dialling_ = false;
      dial_failure_ = link.status();
      if (link.ok() && *link != nullptr) link_ = *link;
      dial_ended_.notify_all();
    };
    link = dial(start, limit);
  }
  return link;
}

// When a call may be repeated:
// - It could not be sent: always, because the server has not seen it.
// - The connection ended before the answer: unless its kind is kOnce or kWaitingOnce, because the server may
//   have executed it.
// - The server answered, or the time is over: never.
absl::StatusOr<StoreCaller::Answer> TcpStoreClient::attempt(TcpStoreLink& link, proto::Request& request,
                                                            absl::Time deadline, Kind kind,
                                                            bool& may_repeat) {
  may_repeat = false;
  const absl::Time start = clock_.now();
  const absl::Duration left = deadline - start;
  const bool waits = kind == Kind::kWaiting || kind == Kind::kWaitingOnce;
  if (waits) request.set_timeout_us(to_timeout_us(left));
  const absl::StatusOr<TcpStoreLink::Sent> sent = link.send(request);
  if (!sent.ok()) {
    may_repeat = absl::IsUnavailable(sent.status());
    return named(sent.status());
  }
  const absl::Duration timeout = std::max(left, kMinCallTime) + (waits ? kAnswerTime : absl::ZeroDuration());
  // Drop the call, so that a late answer is ignored. A wait that ends early was not admitted by the pool.
  if (!sent->answer.wait_for(timeout)) {
    link.forget(sent->id);
    if (clock_.now() - start < timeout) {
      return named(absl::ResourceExhaustedError(
          "this thread must not wait: no runnable thread would be left in its pool"));
    }
    return named(absl::DeadlineExceededError("the server did not answer in time"));
  }
  absl::StatusOr<TcpStoreLink::Answer> answer = sent->answer.result();
  if (!answer.ok()) {
    may_repeat = kind != Kind::kOnce && kind != Kind::kWaitingOnce && absl::IsUnavailable(answer.status());
    return named(answer.status());
  }
  GRADWIRE_RETURN_IF_ERROR(named(status_of(**answer)));
  // The results have the same field numbers as the requests.
  if (static_cast<int>((*answer)->result_case()) != static_cast<int>(request.call_case())) {
    return named(absl::FailedPreconditionError("the server at this address is not a Gradwire store"));
  }
  return answer;
}

absl::StatusOr<StoreCaller::Answer> TcpStoreClient::call(proto::Request& request, absl::Time deadline,
                                                         Kind kind) {
  // Set at the first failure: a server that accepts connections and closes them again must not keep the
  // call busy until its deadline.
  absl::Time give_up = absl::InfiniteFuture();
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::shared_ptr<TcpStoreLink> link,
                              open_link(std::min(deadline, give_up)));
    const absl::Time start = clock_.now();
    bool may_repeat;
    absl::StatusOr<TcpStoreLink::Answer> answer = attempt(*link, request, deadline, kind, may_repeat);
    if (answer.ok() || !may_repeat) return answer;
    log(LogLevel::kInfo, "repeats a call to the ", options_.name, ": ", answer.status().message());
    const absl::Time now = clock_.now();
    // After a connection that lasted for a while, start counting kReconnectFor anew.
    if (now - start > kReconnectFor) give_up = absl::InfiniteFuture();
    give_up = std::min(give_up, now + kReconnectFor);
    if (now >= std::min(deadline, give_up)) return answer;
    // Pause: the server may accept connections and close them at once.
    GRADWIRE_RETURN_IF_ERROR(pause(kMinPause));
  }
}

absl::Status TcpStoreClient::connect(absl::Time deadline) { return open_link(deadline).status(); }

absl::Status TcpStoreClient::wait_for_workers(absl::Time deadline) {
  const absl::Time start = clock_.now();
  proto::Request request;
  request.mutable_wait_for_workers();
  GRADWIRE_ASSIGN_OR_RETURN(const TcpStoreLink::Answer answer, call(request, deadline, Kind::kWaiting));
  const int workers = answer->wait_for_workers().workers();
  if (workers >= options_.world_size) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "waited ", absl::FormatDuration(absl::Trunc(clock_.now() - start, absl::Milliseconds(1))), " in the ",
      options_.name, " for ", options_.world_size, " workers, this one included: ", workers, " connected"));
}

}  // namespace gradwire::store
