#include "gradwire/store/c10d/c10d_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/calls/pause.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
namespace {

// How much longer than the deadline of a waiting call the client waits for answers.
constexpr absl::Duration kAnswerTime = absl::Seconds(5);
constexpr absl::Duration kMaxPause = absl::Milliseconds(200);

std::string begin(C10dQuery query) { return std::string(1, static_cast<char>(query)); }

std::string with_key(C10dQuery query, absl::string_view key) {
  std::string bytes = begin(query);
  put_c10d_key(bytes, key);
  return bytes;
}

std::string with_key_and_value(C10dQuery query, absl::string_view key, absl::string_view value) {
  std::string bytes = with_key(query, key);
  put_c10d_string(bytes, value);
  return bytes;
}

std::string with_keys(C10dQuery query, const std::vector<std::string>& keys) {
  std::string bytes = begin(query);
  put_c10d_number(bytes, keys.size(), 8);
  for (const std::string& key : keys) put_c10d_key(bytes, key);
  return bytes;
}

absl::Status check_key(absl::string_view key) {
  if (key.size() < kTorchMaxStringBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a key of ", key.size(),
                                                   " bytes is over the limit of PyTorch's TCPStore, ",
                                                   kTorchMaxStringBytes - 1, " bytes"));
}

absl::Status check_value(absl::string_view value) {
  if (value.size() <= kTorchMaxPayloadBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a value of ", value.size(),
                                                   " bytes is over the limit of PyTorch's TCPStore, ",
                                                   kTorchMaxPayloadBytes, " bytes"));
}

// The caller has packed the lists, so they are well-formed.
std::vector<std::string> keys_of(const proto::KeyList& list) {
  return unpack_keys(list).value_or(std::vector<std::string>());
}

absl::Status check_list(const proto::KeyList& list, absl::Status (*check)(absl::string_view)) {
  for (const std::string& entry : keys_of(list)) GRADWIRE_RETURN_IF_ERROR(check(entry));
  return absl::OkStatus();
}

}  // namespace

C10dCalls::C10dCalls(C10dSocket& socket, Clock& clock, absl::Time deadline)
    : socket_(socket),
      clock_(clock),
      deadline_(deadline),
      answer_deadline_(std::max(deadline, clock.now()) + kAnswerTime) {}

absl::Status C10dCalls::run(const proto::Request& request, proto::Response& response, bool& broken) {
  broken = false;
  GRADWIRE_RETURN_IF_ERROR(check(request));
  const absl::Status status = make(request, response);
  // The rest of this answer would be taken for the answer to the next call.
  broken = !status.ok();
  return status;
}

absl::Status C10dCalls::check(const proto::Request& request) const {
  switch (request.call_case()) {
    case proto::Request::kSet:
      GRADWIRE_RETURN_IF_ERROR(check_key(request.set().key()));
      return check_value(request.set().value());
    case proto::Request::kMultiSet:
      GRADWIRE_RETURN_IF_ERROR(check_list(request.multi_set().keys(), check_key));
      return check_list(request.multi_set().values(), check_value);
    case proto::Request::kAppend:
      GRADWIRE_RETURN_IF_ERROR(check_key(request.append().key()));
      return check_value(request.append().value());
    case proto::Request::kCompareSet:
      GRADWIRE_RETURN_IF_ERROR(check_key(request.compare_set().key()));
      GRADWIRE_RETURN_IF_ERROR(check_value(request.compare_set().expected()));
      return check_value(request.compare_set().desired());
    case proto::Request::kAdd:
      return check_key(request.add().key());
    case proto::Request::kDeleteKey:
      return check_key(request.delete_key().key());
    case proto::Request::kWatch:
      return check_key(request.watch().key());
    case proto::Request::kWait:
      return check_list(request.wait().keys(), check_key);
    case proto::Request::kCheck:
      return check_list(request.check().keys(), check_key);
    case proto::Request::kQueuePush:
      GRADWIRE_RETURN_IF_ERROR(check_key(request.queue_push().queue()));
      return check_value(request.queue_push().value());
    case proto::Request::kQueuePop:
      return check_key(request.queue_pop().queue());
    case proto::Request::kQueueLen:
      return check_key(request.queue_len().queue());
    default:
      return absl::OkStatus();
  }
}

absl::Status C10dCalls::make(const proto::Request& request, proto::Response& response) {
  switch (request.call_case()) {
    case proto::Request::kSet:
      response.mutable_set();
      return set(request);
    case proto::Request::kMultiSet:
      response.mutable_multi_set();
      return set(request);
    case proto::Request::kAppend:
      response.mutable_append();
      return socket_.execute(
          with_key_and_value(C10dQuery::kAppend, request.append().key(), request.append().value()),
          answer_deadline_);
    case proto::Request::kAdd: {
      std::string bytes = with_key(C10dQuery::kAdd, request.add().key());
      put_c10d_number(bytes, static_cast<uint64_t>(request.add().n()), 8);
      GRADWIRE_ASSIGN_OR_RETURN(const uint64_t sum, send_for_number(bytes));
      response.mutable_add()->set_sum(static_cast<int64_t>(sum));
      return absl::OkStatus();
    }
    case proto::Request::kCompareSet: {
      const proto::CompareSetRequest& call = request.compare_set();
      std::string bytes = with_key_and_value(C10dQuery::kCompareSet, call.key(), call.expected());
      put_c10d_string(bytes, call.desired());
      GRADWIRE_RETURN_IF_ERROR(socket_.send(bytes, answer_deadline_));
      GRADWIRE_ASSIGN_OR_RETURN(*response.mutable_compare_set()->mutable_current(),
                                socket_.read_string(kMaxValueBytes, answer_deadline_));
      return absl::OkStatus();
    }
    case proto::Request::kDeleteKey: {
      GRADWIRE_ASSIGN_OR_RETURN(const uint64_t deleted,
                                send_for_number(with_key(C10dQuery::kDeleteKey, request.delete_key().key())));
      response.mutable_delete_key()->set_existed(deleted != 0);
      return absl::OkStatus();
    }
    case proto::Request::kNumKeys:
      return num_keys(request.num_keys().prefix(), *response.mutable_num_keys());
    case proto::Request::kListKeys: {
      GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, list_keys(request.list_keys().prefix()));
      pack_keys(keys, *response.mutable_list_keys()->mutable_keys());
      return absl::OkStatus();
    }
    case proto::Request::kCheck: {
      GRADWIRE_ASSIGN_OR_RETURN(const bool all, all_exist(keys_of(request.check().keys())));
      response.mutable_check()->set_all_exist(all);
      return absl::OkStatus();
    }
    case proto::Request::kWait:
      return wait(request.wait(), *response.mutable_wait());
    case proto::Request::kWatch:
      return watch(request.watch(), *response.mutable_watch());
    case proto::Request::kQueuePush:
      response.mutable_queue_push();
      return socket_.execute(with_key_and_value(C10dQuery::kQueuePush, request.queue_push().queue(),
                                                request.queue_push().value()),
                             answer_deadline_);
    case proto::Request::kQueuePop:
      return pop(request.queue_pop().queue(), *response.mutable_queue_pop());
    case proto::Request::kQueueLen: {
      GRADWIRE_ASSIGN_OR_RETURN(const uint64_t length,
                                send_for_number(with_key(C10dQuery::kQueueLen, request.queue_len().queue())));
      response.mutable_queue_len()->set_length(static_cast<int64_t>(length));
      return absl::OkStatus();
    }
    default:
      return absl::InternalError("a call that the protocol of PyTorch's TCPStore does not have");
  }
}

absl::Status C10dCalls::set(const proto::Request& request) {
  if (request.has_set()) {
    return socket_.execute(with_key_and_value(C10dQuery::kSet, request.set().key(), request.set().value()),
                           answer_deadline_);
  }
  const std::vector<std::string> keys = keys_of(request.multi_set().keys());
  const std::vector<std::string> values = keys_of(request.multi_set().values());
  std::string bytes = begin(C10dQuery::kMultiSet);
  put_c10d_number(bytes, keys.size(), 8);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    put_c10d_key(bytes, keys[i]);
    put_c10d_string(bytes, values[i]);
  }
  return socket_.execute(std::move(bytes), answer_deadline_);
}

absl::StatusOr<uint64_t> C10dCalls::send_for_number(absl::string_view query) {
  GRADWIRE_RETURN_IF_ERROR(socket_.send(query, answer_deadline_));
  return socket_.read_number(answer_deadline_);
}

absl::StatusOr<bool> C10dCalls::all_exist(const std::vector<std::string>& keys) {
  GRADWIRE_RETURN_IF_ERROR(socket_.send(with_keys(C10dQuery::kCheck, keys), answer_deadline_));
  GRADWIRE_ASSIGN_OR_RETURN(const std::string answer, socket_.read(1, answer_deadline_));
  return answer[0] == kC10dReady;
}

// If the time is over, the wait must be cancelled before the connection can be used again. The answer to the
// wait may cross with the cancellation; then it comes first, and the keys exist.
absl::StatusOr<bool> C10dCalls::wait_for(const std::vector<std::string>& keys) {
  if (clock_.now() >= deadline_) return all_exist(keys);
  GRADWIRE_RETURN_IF_ERROR(socket_.send(with_keys(C10dQuery::kWait, keys), answer_deadline_));
  absl::StatusOr<std::string> answer = socket_.read(1, deadline_);
  if (answer.ok()) return (*answer)[0] == kC10dStopWaiting;
  if (!absl::IsDeadlineExceeded(answer.status())) return answer.status();
  GRADWIRE_RETURN_IF_ERROR(socket_.send(begin(C10dQuery::kCancelWait), answer_deadline_));
  GRADWIRE_ASSIGN_OR_RETURN(const std::string first, socket_.read(1, answer_deadline_));
  if (first[0] != kC10dStopWaiting) return false;
  return socket_.read(1, answer_deadline_).status().ok();
}

absl::StatusOr<std::vector<std::string>> C10dCalls::missing(const std::vector<std::string>& keys) {
  std::string queries;
  for (const std::string& key : keys) queries += with_keys(C10dQuery::kCheck, {key});
  GRADWIRE_RETURN_IF_ERROR(socket_.send(queries, answer_deadline_));
  GRADWIRE_ASSIGN_OR_RETURN(const std::string answers, socket_.read(keys.size(), answer_deadline_));
  std::vector<std::string> result;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (answers[i] != kC10dReady) result.push_back(keys[i]);
  }
  return result;
}

absl::StatusOr<std::string> C10dCalls::get(const std::string& key) {
  GRADWIRE_RETURN_IF_ERROR(socket_.send(with_key(C10dQuery::kGet, key), answer_deadline_));
  return socket_.read_string(kMaxValueBytes, answer_deadline_);
}

absl::StatusOr<std::vector<std::string>> C10dCalls::multi_get(const std::vector<std::string>& keys) {
  GRADWIRE_RETURN_IF_ERROR(socket_.send(with_keys(C10dQuery::kMultiGet, keys), answer_deadline_));
  std::vector<std::string> values;
  std::size_t bytes_left = kMaxMultiBytes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    GRADWIRE_ASSIGN_OR_RETURN(std::string value, socket_.read_string(bytes_left, answer_deadline_));
    bytes_left -= value.size();
    values.push_back(std::move(value));
  }
  return values;
}

// The server gives a missing key an empty value. If one is empty, the keys may have been deleted since the
// wait. A key that others set and delete in turn must not keep the client and the server busy, so a pause
// precedes each new attempt.
absl::Status C10dCalls::wait(const proto::WaitRequest& request, proto::WaitResponse& response) {
  const std::vector<std::string> keys = keys_of(request.keys());
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const bool woken, wait_for(keys));
    GRADWIRE_ASSIGN_OR_RETURN(const bool exist, all_exist(keys));
    if (!exist) {
      if (woken && clock_.now() < deadline_) {
        pause();
        continue;
      }
      GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> absent, missing(keys));
      pack_keys(absent, *response.mutable_missing());
      if (!absent.empty()) return absl::OkStatus();
    }
    if (!request.with_values()) return absl::OkStatus();
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> values, multi_get(keys));
    const bool unsure =
        std::any_of(values.begin(), values.end(), [](const auto& each) { return each.empty(); });
    if (unsure) {
      GRADWIRE_ASSIGN_OR_RETURN(const bool still_exist, all_exist(keys));
      if (!still_exist) {
        pause();
        continue;
      }
    }
    pack_keys(values, *response.mutable_values());
    return absl::OkStatus();
  }
}

absl::Status C10dCalls::watch(const proto::WatchRequest& request, proto::WatchResponse& response) {
  const std::string& key = request.key();
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const bool exists, wait_for({key}));
    if (!exists) return absl::OkStatus();
    GRADWIRE_ASSIGN_OR_RETURN(std::string value, get(key));
    bool still_exists = true;
    if (value.empty()) {
      GRADWIRE_ASSIGN_OR_RETURN(still_exists, all_exist({key}));
    }
    if (still_exists && (!request.has_last_value() || value != request.last_value())) {
      response.set_value(std::move(value));
      return absl::OkStatus();
    }
    if (clock_.now() >= deadline_) return absl::OkStatus();
    if (still_exists) pause();
  }
}

// A key with the queue's name ends the wait too; then the queue is read again and again.
absl::Status C10dCalls::pop(const std::string& queue, proto::QueuePopResponse& response) {
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const uint64_t length, send_for_number(with_key(C10dQuery::kQueuePop, queue)));
    if (length > 0) {
      GRADWIRE_ASSIGN_OR_RETURN(*response.mutable_value(),
                                socket_.read_string(kMaxValueBytes, answer_deadline_));
      return absl::OkStatus();
    }
    if (clock_.now() >= deadline_) return absl::OkStatus();
    const absl::Time before = clock_.now();
    GRADWIRE_ASSIGN_OR_RETURN(const bool woken, wait_for({queue}));
    // PyTorch's server keeps a client that an item has woken in its list of waiting ones, and may wake it at
    // a later wait for another key. A cancellation removes it.
    if (woken) {
      GRADWIRE_RETURN_IF_ERROR(socket_.send(begin(C10dQuery::kCancelWait), answer_deadline_));
      GRADWIRE_RETURN_IF_ERROR(socket_.read(1, answer_deadline_).status());
    }
    if (clock_.now() - before < absl::Milliseconds(1)) pause();
  }
}

// kNumKeys also counts the key of the workers.
absl::Status C10dCalls::num_keys(const std::string& prefix, proto::NumKeysResponse& response) {
  if (!prefix.empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, list_keys(prefix));
    response.set_count(static_cast<int64_t>(keys.size()));
    return absl::OkStatus();
  }
  std::string queries = begin(C10dQuery::kCheck);
  put_c10d_number(queries, 1, 8);
  put_c10d_string(queries, kC10dWorkersKey);
  queries.push_back(static_cast<char>(C10dQuery::kNumKeys));
  GRADWIRE_RETURN_IF_ERROR(socket_.send(queries, answer_deadline_));
  GRADWIRE_ASSIGN_OR_RETURN(const std::string workers, socket_.read(1, answer_deadline_));
  GRADWIRE_ASSIGN_OR_RETURN(const uint64_t count, socket_.read_number(answer_deadline_));
  response.set_count(static_cast<int64_t>(count) - (workers[0] == kC10dReady ? 1 : 0));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> C10dCalls::list_keys(const std::string& prefix) {
  GRADWIRE_ASSIGN_OR_RETURN(const uint64_t count, send_for_number(begin(C10dQuery::kListKeys)));
  if (count > kMaxListedKeys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the names of ", count, " keys take more than the limit of ", kMaxListBytes, " bytes"));
  }
  std::vector<std::string> keys;
  std::size_t bytes_left = kMaxListBytes;
  for (uint64_t i = 0; i < count; ++i) {
    GRADWIRE_ASSIGN_OR_RETURN(std::string key, socket_.read_string(bytes_left, answer_deadline_));
    bytes_left -= std::min(bytes_left, key.size() + kListedKeyBytes);
    if (key.empty() || key.front() != kC10dKeyPrefix) continue;
    key.erase(0, 1);
    if (absl::StartsWith(key, prefix)) keys.push_back(std::move(key));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

void C10dCalls::pause() {
  pause_until(clock_, std::min(deadline_, clock_.now() + next_pause_));
  next_pause_ = std::min(next_pause_ * 2, kMaxPause);
}

}  // namespace gradwire::store
