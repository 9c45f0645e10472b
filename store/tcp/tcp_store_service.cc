// The store of a server, without network and clock: each call takes a request and returns the answers that
// it causes. A request is answered at once, or kept as a waiter until a change satisfies it (wake), its
// deadline passes (expire), its client disconnects (close) or the server stops (stop). A waiter has an
// entry in `waiting_`, in its session, in `deadlines_` if it has one, and in a StoreTable; take() and
// drop() remove all of them.

#include "gradwire/store/tcp/tcp_store_service.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/calls/table_calls.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
namespace {

// The key of `group_` that exists when all workers have connected. It lets wait_for_workers() use the
// waiters of StoreTable.
constexpr char kAllWorkers[] = "all";
constexpr int32_t kMaxWorldSize = 1 << 20;

absl::Status stopped_status() { return absl::UnavailableError("the store's server is stopping"); }

// Memory that a waiting request takes: the request, and an entry for each key.
std::size_t waiting_bytes(const proto::Request& request) {
  // An estimate for a node of the tables and their pointers.
  constexpr std::size_t kEntryBytes = 128;
  return request.ByteSizeLong() +
         kEntryBytes * (1 + static_cast<std::size_t>(request.wait().keys().sizes_size())) +
         // The list of keys to get.
         (request.wait().with_values() ? request.ByteSizeLong() : 0);
}

// A queue has an empty value.
void pack_values(const std::vector<StoreTable::Value>& values, proto::KeyList& list) {
  for (const StoreTable::Value& value : values) {
    pack_key(value == nullptr ? absl::string_view() : absl::string_view(*value), list);
  }
}

// The result is cleared, because a response has either a result or an error.
void fail(const absl::Status& status, proto::Response& response) {
  response.clear_result();
  response.set_code(static_cast<int32_t>(status.code()));
  response.set_message(std::string(status.message()));
}

}  // namespace

TcpStoreService::TcpStoreService(uint64_t number, std::size_t max_waiting_bytes,
                                 std::size_t max_all_waiting_bytes, std::size_t max_unread_bytes)
    : number_(number),
      max_waiting_bytes_(max_waiting_bytes),
      max_all_waiting_bytes_(max_all_waiting_bytes),
      max_unread_bytes_(max_unread_bytes) {}

absl::Status TcpStoreService::handle(Session session, const proto::Request& request, absl::Time now,
                                     Answers& answers) {
  const bool greeted = sessions_.contains(session);
  // The first request must be Hello, and only the first. Otherwise the caller closes the connection.
  if (request.has_hello() ? greeted || request.hello().magic() != kStoreMagic : !greeted) {
    return absl::InvalidArgumentError(
        "the client did not send a valid Hello first: it is not a client of a Gradwire store");
  }
  proto::Response response;
  response.set_id(request.id());
  bool kept = false;
  // The request after the answer to a wait in turn takes the item, or the client does not want it. A client
  // of PyTorch's TCPStore asks for the length of the queue before it pops.
  const uint64_t turn =
      !greeted || request.has_queue_len() ? 0 : std::exchange(sessions_.at(session).turn, 0);
  const absl::Status status =
      stopped_ ? stopped_status() : call(session, request, now, response, answers, kept);
  wake(table_.end_turn(turn), answers);
  // The answer follows later.
  if (kept) return absl::OkStatus();
  if (!status.ok()) fail(status, response);
  answers.push_back({session, std::move(response), {}});
  return absl::OkStatus();
}

absl::Status TcpStoreService::call(Session session, const proto::Request& request, absl::Time now,
                                   proto::Response& response, Answers& answers, bool& kept) {
  switch (request.call_case()) {
    case proto::Request::kHello:
      return hello(session, request.hello(), *response.mutable_hello(), answers);
    case proto::Request::kWait:
      return wait(session, request, now, *response.mutable_wait(), kept);
    case proto::Request::kWatch:
      return watch(session, request, now, *response.mutable_watch(), kept);
    case proto::Request::kWaitForWorkers:
      return wait_for_workers(session, request, now, *response.mutable_wait_for_workers(), kept);
    case proto::Request::kQueuePop:
      return queue_pop(session, request, now, *response.mutable_queue_pop(), kept);
    default:
      break;
  }
  StoreTable::Wakeups wakeups;
  absl::Status status = apply_table_call(table_, request, response, wakeups);
  wake(wakeups, answers);
  return status;
}

absl::Status TcpStoreService::hello(Session session, const proto::HelloRequest& request,
                                    proto::HelloResponse& response, Answers& answers) {
  if (request.version() != kStoreVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "protocol mismatch: the client of the store has version ", request.version(),
        ", the server has version ", kStoreVersion, "; use the same Gradwire in all processes of a job"));
  }
  // A client that knows another number has reconnected to a new server at the same address.
  if (request.server() != 0 && request.server() != number_) {
    return absl::AbortedError("the store's server has been restarted and has lost its keys");
  }
  GRADWIRE_RETURN_IF_ERROR(count_worker(request, answers));
  sessions_[session].world_size = request.world_size();
  response.set_magic(kStoreMagic);
  response.set_version(kStoreVersion);
  response.set_server(number_);
  return absl::OkStatus();
}

absl::Status TcpStoreService::count_worker(const proto::HelloRequest& request, Answers& answers) {
  const int32_t world_size = request.world_size();
  if (world_size == 0) return absl::OkStatus();
  if (world_size < 0 || world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size out of range: got ", world_size, ", expected 1..", kMaxWorldSize));
  }
  if (world_size_ == 0) world_size_ = world_size;
  if (world_size_ != world_size) {
    return absl::InvalidArgumentError(absl::StrCat("world size mismatch: this worker reports ", world_size,
                                                   ", an earlier worker reported ", world_size_));
  }
  // Restarted workers connect in addition to the world size. They are not stored.
  // A client that reconnects has the same id, so it is counted once.
  if (workers_.size() < static_cast<std::size_t>(world_size)) workers_.insert(request.client());
  check_workers(answers);
  return absl::OkStatus();
}

void TcpStoreService::check_workers(Answers& answers) {
  if (world_size_ == 0 || num_workers() < world_size_ || group_.num_keys() != 0) return;
  StoreTable::Wakeups wakeups;
  // The table is empty, so it has room.
  group_.set(kAllWorkers, "", wakeups).IgnoreError();
  wake(wakeups, answers);
}

// A client may send any number.
int64_t TcpStoreService::add_workers(int64_t n, Answers& answers) {
  other_workers_ += std::clamp<int64_t>(n, 0, kMaxWorldSize - other_workers_);
  check_workers(answers);
  return num_workers();
}

// A timeout of 0 asks for the present state: the waiter is removed again at once.
absl::Status TcpStoreService::wait(Session session, const proto::Request& request, absl::Time now,
                                   proto::WaitResponse& response, bool& kept) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<std::string> keys, unpack_checked_keys(request.wait().keys()));
  const bool in_turn = request.wait().in_turn();
  if (in_turn && keys.size() != 1) {
    return absl::InvalidArgumentError("a wait in turn must have one key");
  }
  if (in_turn && sessions_.at(session).waits_in_turn != 0) {
    return absl::InvalidArgumentError("a client may make one wait in turn at a time");
  }
  const bool may_wait = request.timeout_us() != 0;
  if (may_wait) GRADWIRE_RETURN_IF_ERROR(check_room_to_wait(sessions_.at(session), request));
  const uint64_t waiter = next_waiter_++;
  if (table_.wait(waiter, keys, in_turn)) {
    if (!request.wait().with_values()) return absl::OkStatus();
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<StoreTable::Value> values, table_.find_all(keys));
    pack_values(values, *response.mutable_values());
    return absl::OkStatus();
  }
  // From here on the table has the waiter.
  kept = may_wait;
  if (may_wait) {
    keep(waiter, session, request, now);
    if (in_turn) sessions_.at(session).waits_in_turn = waiter;
    if (request.wait().with_values()) waiting_.at(waiter).keys_to_get = std::move(keys);
  } else {
    pack_keys(table_.drop(waiter), *response.mutable_missing());
  }
  return absl::OkStatus();
}

absl::Status TcpStoreService::queue_pop(Session session, const proto::Request& request, absl::Time now,
                                        proto::QueuePopResponse& response, bool& kept) {
  const std::string& queue = request.queue_pop().queue();
  GRADWIRE_RETURN_IF_ERROR(check_store_key(queue));
  StoreTable::Value item = table_.pop(queue);
  if (item == nullptr && request.timeout_us() != 0) {
    GRADWIRE_RETURN_IF_ERROR(check_room_to_wait(sessions_.at(session), request));
    const uint64_t waiter = next_waiter_++;
    kept = true;
    table_.wait_for_item(waiter, queue);
    keep(waiter, session, request, now);
  }
  if (item != nullptr) response.set_value(*item);
  return absl::OkStatus();
}

absl::Status TcpStoreService::watch(Session session, const proto::Request& request, absl::Time now,
                                    proto::WatchResponse& response, bool& kept) {
  const proto::WatchRequest& watch = request.watch();
  GRADWIRE_RETURN_IF_ERROR(check_store_key(watch.key()));
  GRADWIRE_RETURN_IF_ERROR(check_store_value(watch.last_value()));
  std::optional<absl::string_view> last_value;
  if (watch.has_last_value()) last_value = watch.last_value();
  StoreTable::Value value = table_.find(watch.key(), last_value);
  if (value == nullptr && request.timeout_us() != 0) {
    GRADWIRE_RETURN_IF_ERROR(check_room_to_wait(sessions_.at(session), request));
    const uint64_t waiter = next_waiter_++;
    kept = true;
    table_.watch(waiter, watch.key(), last_value);
    keep(waiter, session, request, now);
  }
  if (value != nullptr) response.set_value(*value);
  return absl::OkStatus();
}

absl::Status TcpStoreService::wait_for_workers(Session session, const proto::Request& request, absl::Time now,
                                               proto::WaitForWorkersResponse& response, bool& kept) {
  if (sessions_.at(session).world_size == 0) {
    return absl::InvalidArgumentError("cannot wait for the workers: the client has not set a world size");
  }
  if (group_.find(kAllWorkers) == nullptr && request.timeout_us() != 0) {
    GRADWIRE_RETURN_IF_ERROR(check_room_to_wait(sessions_.at(session), request));
    const uint64_t waiter = next_waiter_++;
    kept = true;
    group_.watch(waiter, kAllWorkers, std::nullopt);
    keep(waiter, session, request, now);
  }
  response.set_workers(static_cast<int32_t>(num_workers()));
  return absl::OkStatus();
}

absl::Status TcpStoreService::check_room_to_wait(const SessionState& session,
                                                 const proto::Request& request) const {
  if (waiting_.size() >= kMaxWaiters) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store's server already has ", kMaxWaiters, " waiting calls, its limit"));
  }
  if (session.waiting_bytes + waiting_bytes(request) > max_waiting_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the waiting calls of this client take ",
                                                     session.waiting_bytes, " of at most ",
                                                     max_waiting_bytes_, " bytes in the store's server"));
  }
  if (waiting_bytes_ + waiting_bytes(request) > max_all_waiting_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the waiting calls of all clients take ", waiting_bytes_,
                                                     " of at most ", max_all_waiting_bytes_,
                                                     " bytes in the store's server"));
  }
  return absl::OkStatus();
}

// `timeout_us` is relative, because the clocks of client and server differ; a negative one means no
// deadline.
void TcpStoreService::keep(uint64_t waiter, Session session, const proto::Request& request, absl::Time now) {
  const absl::Time deadline =
      request.timeout_us() < 0 ? absl::InfiniteFuture() : now + absl::Microseconds(request.timeout_us());
  Waiting waiting{.session = session,
                  .request = request.id(),
                  .call = request.call_case(),
                  .deadline = deadline,
                  .bytes = waiting_bytes(request),
                  .in_turn = request.wait().in_turn(),
                  .keys_to_get = {}};
  if (deadline != absl::InfiniteFuture()) deadlines_.emplace(deadline, waiter);
  SessionState& state = sessions_.at(session);
  state.waiters.insert(waiter);
  state.waiting_bytes += waiting.bytes;
  waiting_bytes_ += waiting.bytes;
  waiting_.emplace(waiter, std::move(waiting));
}

TcpStoreService::Waiting TcpStoreService::take(uint64_t waiter) {
  const auto found = waiting_.find(waiter);
  Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  deadlines_.erase({waiting.deadline, waiter});
  SessionState& state = sessions_.at(waiting.session);
  state.waiters.erase(waiter);
  state.waiting_bytes -= waiting.bytes;
  if (state.waits_in_turn == waiter) state.waits_in_turn = 0;
  waiting_bytes_ -= waiting.bytes;
  return waiting;
}

void TcpStoreService::satisfy(const Waiting& waiting, const StoreTable::Wakeup& wakeup,
                              Answer& answer) const {
  proto::Response& response = answer.response;
  if (waiting.call == proto::Request::kWait) {
    response.mutable_wait();
    if (waiting.keys_to_get.empty()) return;
    absl::StatusOr<std::vector<StoreTable::Value>> values = table_.find_all(waiting.keys_to_get);
    if (!values.ok()) return fail(values.status(), response);
    answer.values = *std::move(values);
  }
  if (waiting.call == proto::Request::kQueuePop) {
    response.mutable_queue_pop();
    answer.values = {wakeup.value};
  }
  if (waiting.call == proto::Request::kWatch) {
    response.mutable_watch();
    answer.values = {wakeup.value};
  }
  if (waiting.call == proto::Request::kWaitForWorkers) {
    response.mutable_wait_for_workers()->set_workers(static_cast<int32_t>(num_workers()));
  }
}

proto::Response complete(TcpStoreService::Answer answer) {
  proto::Response& response = answer.response;
  if (!answer.values.empty()) {
    if (response.has_wait()) pack_values(answer.values, *response.mutable_wait()->mutable_values());
    if (response.has_watch()) response.mutable_watch()->set_value(*answer.values.front());
    if (response.has_queue_pop()) response.mutable_queue_pop()->set_value(*answer.values.front());
  }
  return std::move(response);
}

// The table has removed these waiters already. A client that waits for one large value with many small
// requests must not fill the memory with its answers, so those over the limit are errors.
void TcpStoreService::wake(const StoreTable::Wakeups& wakeups, Answers& answers) {
  HashMap<Session, std::size_t> bytes_for;
  for (const StoreTable::Wakeup& wakeup : wakeups) {
    const Waiting waiting = take(wakeup.waiter);
    if (waiting.in_turn) sessions_.at(waiting.session).turn = wakeup.waiter;
    Answer& answer = answers.emplace_back(Answer{waiting.session, {}, {}});
    answer.response.set_id(waiting.request);
    std::size_t& bytes = bytes_for[waiting.session];
    // A pop has taken its item from the table, so it always gets it.
    if (bytes > max_unread_bytes_ && waiting.call != proto::Request::kQueuePop) {
      fail(absl::ResourceExhaustedError(absl::StrCat("one change has ended so many calls of this client that "
                                                     "their answers take more than ",
                                                     max_unread_bytes_, " bytes")),
           answer.response);
    } else {
      satisfy(waiting, wakeup, answer);
      bytes += answer.response.ByteSizeLong();
      for (const StoreTable::Value& value : answer.values) bytes += value == nullptr ? 0 : value->size();
    }
  }
}

void TcpStoreService::end(uint64_t waiter, const absl::Status& status, Answers& answers) {
  const Waiting waiting = take(waiter);
  // The waiter is in one of the two tables; the other one ignores it.
  const std::vector<std::string> missing = table_.drop(waiter);
  group_.drop(waiter);
  proto::Response& response = answers.emplace_back(Answer{waiting.session, {}, {}}).response;
  response.set_id(waiting.request);
  if (!status.ok()) {
    fail(status, response);
  } else if (waiting.call == proto::Request::kWait) {
    pack_keys(missing, *response.mutable_wait()->mutable_missing());
  } else if (waiting.call == proto::Request::kWatch) {
    response.mutable_watch();
  } else if (waiting.call == proto::Request::kQueuePop) {
    response.mutable_queue_pop();
  } else {
    response.mutable_wait_for_workers()->set_workers(static_cast<int32_t>(num_workers()));
  }
}

void TcpStoreService::close(Session session, Answers& answers) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  // The client is gone, so its answers are dropped.
  Answers dropped;
  // Each round removes one: take() erases it from the session.
  while (!found->second.waiters.empty()) {
    end(*found->second.waiters.begin(), absl::CancelledError("the client has disconnected"), dropped);
  }
  const uint64_t turn = found->second.turn;
  sessions_.erase(found);
  wake(table_.end_turn(turn), answers);
}

void TcpStoreService::cancel(Session session, uint64_t request, Answers& answers) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  wake(table_.end_turn(std::exchange(found->second.turn, 0)), answers);
  for (const uint64_t waiter : found->second.waiters) {
    if (waiting_.at(waiter).request != request) continue;
    Answers dropped;
    end(waiter, absl::CancelledError("the client has cancelled the request"), dropped);
    return;
  }
}

void TcpStoreService::expire(absl::Time now, Answers& answers) {
  while (next_deadline() <= now) end(deadlines_.begin()->second, absl::OkStatus(), answers);
}

absl::Time TcpStoreService::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

void TcpStoreService::stop(Answers& answers) {
  stopped_ = true;
  while (!waiting_.empty()) end(waiting_.begin()->first, stopped_status(), answers);
}

}  // namespace gradwire::store
