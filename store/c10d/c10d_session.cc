#include "gradwire/store/c10d/c10d_session.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/store/interface/limits.h"
#include "gradwire/store/interface/quoted_key.h"

namespace gradwire::store {
namespace {

// The user's key of a key on the wire.
absl::StatusOr<absl::string_view> key_of(const std::string& wire) {
  if (!wire.empty() && wire.front() == kC10dKeyPrefix) return absl::string_view(wire).substr(1);
  return absl::InvalidArgumentError(absl::StrCat(
      "the key ", quoted_key(wire), " does not begin with \"/\": the client is not a TCPStore of PyTorch"));
}

absl::Status pack_wire_keys(const std::vector<std::string>& strings, proto::KeyList& list) {
  for (const std::string& wire : strings) {
    GRADWIRE_ASSIGN_OR_RETURN(const absl::string_view key, key_of(wire));
    pack_key(key, list);
  }
  return absl::OkStatus();
}

// Only PyTorch's TCPStore itself uses this key, and alone.
bool is_for_workers(const C10dRequest& request) {
  return !request.strings.empty() && request.strings[0] == kC10dWorkersKey;
}

}  // namespace

absl::Status C10dSession::start(Server& server) {
  proto::Request request;
  request.mutable_hello()->set_magic(kStoreMagic);
  request.mutable_hello()->set_version(kStoreVersion);
  request.mutable_hello()->set_client(client_);
  return call(C10dQuery::kValidate, request, server);
}

absl::Status C10dSession::receive(absl::string_view bytes, Server& server) {
  C10dRequest request;
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const bool complete, parser_.read(bytes, request));
    if (!complete) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(is_for_workers(request) ? handle_workers(request, server)
                                                     : handle(request, server));
  }
}

absl::Status C10dSession::call(C10dQuery query, proto::Request& request, Server& server) {
  request.set_id(next_id_);
  calls_.emplace(next_id_++, query);
  return server.call(request);
}

absl::Status C10dSession::handle(const C10dRequest& request, Server& server) {
  proto::Request call;
  const std::vector<std::string>& strings = request.strings;
  absl::string_view key;
  // The queries with one key, which is their first string.
  const bool one_key = !strings.empty() && request.query != C10dQuery::kCheck &&
                       request.query != C10dQuery::kWait && request.query != C10dQuery::kMultiGet &&
                       request.query != C10dQuery::kMultiSet;
  if (one_key) {
    GRADWIRE_ASSIGN_OR_RETURN(key, key_of(strings[0]));
  }
  const std::string name(key);
  switch (request.query) {
    case C10dQuery::kValidate:
      return absl::InvalidArgumentError("the client sent its greeting twice");
    case C10dQuery::kPing: {
      const auto nonce = static_cast<uint32_t>(request.number);
      put_c10d_number(output_, nonce == kC10dGradwireNonce ? ~nonce : nonce, 4);
      return absl::OkStatus();
    }
    case C10dQuery::kSet:
      call.mutable_set()->set_key(name);
      call.mutable_set()->set_value(strings[1]);
      break;
    case C10dQuery::kCompareSet:
      call.mutable_compare_set()->set_key(name);
      call.mutable_compare_set()->set_expected(strings[1]);
      call.mutable_compare_set()->set_desired(strings[2]);
      break;
    case C10dQuery::kGet:
      // With a timeout of 0 it is answered at once.
      call.mutable_watch()->set_key(name);
      break;
    case C10dQuery::kAdd:
      call.mutable_add()->set_key(name);
      call.mutable_add()->set_n(static_cast<int64_t>(request.number));
      break;
    case C10dQuery::kCheck:
      GRADWIRE_RETURN_IF_ERROR(pack_wire_keys(strings, *call.mutable_check()->mutable_keys()));
      break;
    case C10dQuery::kWait:
      return wait(request, server);
    case C10dQuery::kNumKeys:
      call.mutable_num_keys();
      break;
    case C10dQuery::kDeleteKey:
      call.mutable_delete_key()->set_key(name);
      break;
    case C10dQuery::kAppend:
      call.mutable_append()->set_key(name);
      call.mutable_append()->set_value(strings[1]);
      break;
    case C10dQuery::kMultiGet:
      return multi_get(request, server);
    case C10dQuery::kMultiSet:
      return multi_set(request, server);
    case C10dQuery::kCancelWait:
      calls_.erase(waiting_);
      server.cancel(std::exchange(waiting_, 0));
      output_.push_back(kC10dWaitCancelled);
      return absl::OkStatus();
    case C10dQuery::kQueuePush:
      call.mutable_queue_push()->set_queue(name);
      call.mutable_queue_push()->set_value(strings[1]);
      break;
    case C10dQuery::kQueuePop: {
      // The answer has the length before. Nothing happens between these two calls.
      proto::Request length;
      length.mutable_queue_len()->set_queue(name);
      GRADWIRE_RETURN_IF_ERROR(this->call(C10dQuery::kQueueLen, length, server));
      call.mutable_queue_pop()->set_queue(name);
      break;
    }
    case C10dQuery::kQueueLen:
      call.mutable_queue_len()->set_queue(name);
      break;
    case C10dQuery::kListKeys:
      call.mutable_list_keys();
      break;
  }
  return this->call(request.query, call, server);
}

// PyTorch's client pops by a wait for the queue and a pop. So an item must wake only one of the clients that
// wait for it, or the others would find the queue empty.
absl::Status C10dSession::wait(const C10dRequest& request, Server& server) {
  if (waiting_ != 0) {
    return absl::InvalidArgumentError("the client sent a wait while another one is not answered");
  }
  proto::Request call;
  call.set_timeout_us(-1);
  call.mutable_wait()->set_in_turn(request.strings.size() == 1);
  GRADWIRE_RETURN_IF_ERROR(pack_wire_keys(request.strings, *call.mutable_wait()->mutable_keys()));
  waiting_ = next_id_;
  return this->call(C10dQuery::kWait, call, server);
}

// A missing key has an empty value, as in PyTorch's server.
absl::Status C10dSession::multi_get(const C10dRequest& request, Server& server) {
  const std::size_t before = output_.size();
  for (const std::string& wire : request.strings) {
    GRADWIRE_ASSIGN_OR_RETURN(const absl::string_view key, key_of(wire));
    proto::Request call;
    call.mutable_watch()->set_key(std::string(key));
    GRADWIRE_RETURN_IF_ERROR(this->call(C10dQuery::kGet, call, server));
    // With the 8 bytes of each length.
    if (output_.size() - before > kMaxMultiBytes + 8 * kMaxKeysPerWait) {
      return absl::ResourceExhaustedError(
          absl::StrCat("multi_get: the values take more than the limit of ", kMaxMultiBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status C10dSession::multi_set(const C10dRequest& request, Server& server) {
  proto::Request call;
  proto::MultiSetRequest& set = *call.mutable_multi_set();
  for (std::size_t i = 0; i + 1 < request.strings.size(); i += 2) {
    GRADWIRE_ASSIGN_OR_RETURN(const absl::string_view key, key_of(request.strings[i]));
    pack_key(key, *set.mutable_keys());
    pack_key(request.strings[i + 1], *set.mutable_values());
  }
  return this->call(C10dQuery::kMultiSet, call, server);
}

absl::Status C10dSession::handle_workers(const C10dRequest& request, Server& server) {
  const int64_t workers =
      server.add_workers(request.query == C10dQuery::kAdd ? static_cast<int64_t>(request.number) : 0);
  switch (request.query) {
    case C10dQuery::kAdd:
      put_c10d_number(output_, static_cast<uint64_t>(workers), 8);
      return absl::OkStatus();
    case C10dQuery::kGet:
      put_c10d_string(output_, workers > 0 ? absl::StrCat(workers) : "");
      return absl::OkStatus();
    case C10dQuery::kCheck:
      if (request.strings.size() > 1) break;
      output_.push_back(workers > 0 ? kC10dReady : kC10dNotReady);
      return absl::OkStatus();
    case C10dQuery::kWait:
      // A client waits for this key only after it has added to it.
      if (request.strings.size() > 1 || workers == 0) break;
      output_.push_back(kC10dStopWaiting);
      return absl::OkStatus();
    default:
      break;
  }
  return absl::InvalidArgumentError(
      "the client used the key \"init/\", which counts workers, in another way");
}

void C10dSession::put_value(const proto::WatchResponse& response) {
  put_c10d_string(output_, response.has_value() ? response.value() : "");
}

absl::Status C10dSession::answer(const proto::Response& response) {
  const auto found = calls_.find(response.id());
  // The message that announces the end of the server.
  if (found == calls_.end()) return absl::OkStatus();
  const C10dQuery query = found->second;
  calls_.erase(found);
  if (response.id() == waiting_) waiting_ = 0;
  if (response.code() != 0) {
    return absl::Status(static_cast<absl::StatusCode>(response.code()), response.message());
  }
  switch (query) {
    case C10dQuery::kCompareSet:
      put_c10d_string(output_, response.compare_set().current());
      break;
    case C10dQuery::kGet:
      put_value(response.watch());
      break;
    case C10dQuery::kAdd:
      put_c10d_number(output_, static_cast<uint64_t>(response.add().sum()), 8);
      break;
    case C10dQuery::kCheck:
      output_.push_back(response.check().all_exist() ? kC10dReady : kC10dNotReady);
      break;
    case C10dQuery::kWait:
      output_.push_back(kC10dStopWaiting);
      break;
    case C10dQuery::kNumKeys:
      put_c10d_number(output_, static_cast<uint64_t>(response.num_keys().count()), 8);
      break;
    case C10dQuery::kDeleteKey:
      put_c10d_number(output_, response.delete_key().existed() ? 1 : 0, 8);
      break;
    case C10dQuery::kQueuePop:
      if (response.queue_pop().has_value()) put_c10d_string(output_, response.queue_pop().value());
      break;
    case C10dQuery::kQueueLen:
      put_c10d_number(output_, static_cast<uint64_t>(response.queue_len().length()), 8);
      break;
    case C10dQuery::kListKeys: {
      const std::optional<std::vector<std::string>> keys =
          unpack_keys(response.list_keys().keys(), kMaxListedKeys);
      if (!keys.has_value()) return absl::InternalError("malformed list of keys in an answer of the store");
      put_c10d_number(output_, keys->size(), 8);
      for (const std::string& key : *keys) put_c10d_key(output_, key);
      break;
    }
    default:
      // These queries have no answer.
      break;
  }
  return absl::OkStatus();
}

}  // namespace gradwire::store
