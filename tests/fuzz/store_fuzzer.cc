// Reads the input as requests to the server of a TcpStore (proto/store.proto), from three clients that have
// sent Hello. For each request: a byte that selects the client, a byte with the length, and the bytes. A
// model determines what each answer must be.

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gradwire/store/tcp/tcp_store_service.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::store::TcpStoreService;
namespace proto = gradwire::store::proto;

using Session = TcpStoreService::Session;
constexpr absl::Time kNow = absl::UnixEpoch();
constexpr int kInvalid = static_cast<int>(absl::StatusCode::kInvalidArgument);

std::optional<std::vector<std::string>> keys_of(const proto::KeyList& list) {
  std::vector<std::string> keys;
  std::size_t at = 0;
  for (const uint32_t size : list.sizes()) {
    if (at + uint64_t{size} > list.keys().size()) return std::nullopt;
    keys.push_back(list.keys().substr(at, size));
    at += size;
  }
  if (at != list.keys().size() || keys.size() > 65'536) return std::nullopt;
  return keys;
}

// A model of the store as documented: a map of values, and one of queues.
class Model {
 public:
  struct Waiting {
    Session session;
    uint64_t id;
    std::vector<std::string> keys;
    enum { kWait, kInTurn, kWatch, kPop } kind = kWait;
    // The keys whose values the answer has.
    std::vector<std::string> to_get;
    std::optional<std::string> last;
    // Distinguishes requests with the same id.
    uint64_t id_in_model = 0;
  };
  // Checks the answers that a request caused: its own, and those of calls that waited.
  void expect(Session session, const proto::Request& request, TcpStoreService::Answers answers) {
    // The request after the answer to a wait in turn ends the turn, after its own effects.
    if (!request.has_queue_len()) end_turn(session);
    if (may_wait(session, request)) {
      waiting_.push_back(waiting_of(session, request));
      waiting_.back().id_in_model = next_id_++;
    } else {
      // The request's own answer is the last one.
      require(!answers.empty(), "a request was not answered");
      const TcpStoreService::Answer own = std::move(answers.back());
      answers.pop_back();
      require(own.session == session && own.response.id() == request.id(), "an answer to the wrong request");
      check(session, request, own.response);
    }
    expect_woken(answers);
  }
  void close(Session session, const TcpStoreService::Answers& answers) {
    std::erase_if(waiting_, [session](const Waiting& each) { return each.session == session; });
    end_turn(session);
    expect_woken(answers);
  }
  std::size_t num_waiting() const { return waiting_.size(); }

 private:
  static Waiting waiting_of(Session session, const proto::Request& request) {
    Waiting waiting{.session = session, .id = request.id()};
    if (request.has_wait()) {
      waiting.keys = *keys_of(request.wait().keys());
      if (request.wait().in_turn()) waiting.kind = Waiting::kInTurn;
      if (request.wait().with_values()) waiting.to_get = waiting.keys;
    } else if (request.has_queue_pop()) {
      waiting.kind = Waiting::kPop;
      waiting.keys = {request.queue_pop().queue()};
    } else {
      waiting.kind = Waiting::kWatch;
      waiting.keys = {request.watch().key()};
      if (request.watch().has_last_value()) waiting.last = request.watch().last_value();
    }
    return waiting;
  }
  bool satisfied(const Waiting& waiting) const {
    if (waiting.kind == Waiting::kPop) return queues_.contains(waiting.keys[0]);
    for (const std::string& key : waiting.keys) {
      const auto found = values_.find(key);
      if (waiting.kind == Waiting::kWatch) return found != values_.end() && waiting.last != found->second;
      if (!exists(key)) return false;
    }
    return true;
  }
  bool exists(const std::string& name) const { return values_.contains(name) || queues_.contains(name); }
  // A session may have one wait in turn, for one key.
  bool is_valid_wait(Session session, const proto::WaitRequest& wait) const {
    const auto keys = keys_of(wait.keys());
    if (!keys.has_value() || !wait.in_turn()) return keys.has_value();
    const bool another = std::any_of(waiting_.begin(), waiting_.end(), [session](const Waiting& each) {
      return each.kind == Waiting::kInTurn && each.session == session;
    });
    return keys->size() == 1 && !another;
  }
  void end_turn(Session session) {
    const auto found = turns_.find(session);
    if (found == turns_.end()) return;
    ended_turn_ = found->second;
    turns_.erase(found);
  }
  // Whether an item of the queue has no turn.
  bool is_item_free(const std::string& queue) const {
    const auto items = queues_.find(queue);
    const auto turns =
        std::count_if(turns_.begin(), turns_.end(), [&](const auto& each) { return each.second == queue; });
    return items != queues_.end() && static_cast<std::size_t>(turns) < items->second.size();
  }
  // The values of the keys as an answer has them; a queue has an empty one.
  std::vector<std::string> values_of(const std::vector<std::string>& keys) const {
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(values_.contains(key) ? values_.at(key) : "");
    return values;
  }
  bool may_wait(Session session, const proto::Request& request) const {
    if (request.timeout_us() == 0) return false;
    if (request.has_wait() ? !is_valid_wait(session, request.wait())
                           : !request.has_watch() && !request.has_queue_pop()) {
      return false;
    }
    return !satisfied(waiting_of(0, request));
  }
  // Calls that waited and are now satisfied must be answered, and no others.
  void expect_woken(const TcpStoreService::Answers& answers) {
    std::multiset<std::pair<Session, uint64_t>> woken, expected;
    std::multiset<std::vector<std::string>> got, values;
    for (const auto& answer : answers) {
      require(answer.response.code() == 0, "a call that waited failed");
      woken.emplace(answer.session, answer.response.id());
      if (answer.response.wait().has_values()) got.insert(*keys_of(answer.response.wait().values()));
    }
    // An item has been pushed: it wakes one of the waits in turn, the oldest.
    // The end of a turn without a pop wakes the oldest of those that are left.
    bool turn = pushed_.has_value();
    std::erase_if(waiting_, [&](const Waiting& each) {
      if (each.kind == Waiting::kPop ? given_ != each.id_in_model : !satisfied(each)) return false;
      if (each.kind == Waiting::kInTurn && !values_.contains(each.keys[0])) {
        const bool by_item = each.keys[0] == pushed_ && std::exchange(turn, false);
        if (!by_item && !(each.keys[0] == ended_turn_ && is_item_free(each.keys[0]))) return false;
        turns_[each.session] = each.keys[0];
      }
      expected.emplace(each.session, each.id);
      if (!each.to_get.empty()) values.insert(values_of(each.to_get));
      return true;
    });
    require(woken == expected, "the wrong calls were woken");
    require(got == values, "a call that waited got the wrong values");
    pushed_.reset();
    ended_turn_.reset();
    given_ = 0;
  }
  // The oldest pop that waits for the queue gets the item.
  void push(const std::string& queue, const std::string& item) {
    for (const Waiting& each : waiting_) {
      if (each.kind != Waiting::kPop || each.keys[0] != queue) continue;
      given_ = each.id_in_model;
      return;
    }
    queues_[queue].push_back(item);
    pushed_ = queue;
  }
  void check(Session session, const proto::Request& request, const proto::Response& response) {
    const auto value_of = [this](const std::string& key) -> const std::string* {
      const auto found = values_.find(key);
      return found == values_.end() ? nullptr : &found->second;
    };
    const bool ok = response.code() == 0;
    switch (request.call_case()) {
      case proto::Request::kSet:
        require(ok && response.has_set(), "set");
        values_[request.set().key()] = request.set().value();
        return;
      case proto::Request::kAdd:
        check_add(request.add(), response);
        return;
      case proto::Request::kCompareSet: {
        const auto& call = request.compare_set();
        const std::string* const value = value_of(call.key());
        const bool matches = value == nullptr ? call.expected().empty() : *value == call.expected();
        const std::string current = matches ? call.desired() : value == nullptr ? call.expected() : *value;
        require(ok && response.compare_set().current() == current, "compare_set");
        if (matches) values_[call.key()] = call.desired();
        return;
      }
      case proto::Request::kDeleteKey:
        require(ok && response.delete_key().existed() == (values_.erase(request.delete_key().key()) > 0),
                "delete");
        return;
      case proto::Request::kNumKeys: {
        int64_t count = 0;
        for (const auto& [key, value] : values_) count += key.rfind(request.num_keys().prefix(), 0) == 0;
        require(ok && response.num_keys().count() == count, "num_keys");
        return;
      }
      case proto::Request::kWait: {
        const bool valid = is_valid_wait(session, request.wait());
        require(response.code() == (valid ? 0 : kInvalid), "wait");
        if (!valid) return;
        const auto keys = keys_of(request.wait().keys());
        std::set<std::string> missing;
        for (const std::string& key : *keys) {
          if (!exists(key)) missing.insert(key);
        }
        require(!request.wait().with_values() || !missing.empty() ||
                    keys_of(response.wait().values()) == values_of(*keys),
                "the values of a wait");
        const auto reported = keys_of(response.wait().missing());
        require(reported.has_value() && std::set<std::string>(reported->begin(), reported->end()) == missing,
                "missing keys");
        return;
      }
      case proto::Request::kWatch: {
        const std::string* const value = value_of(request.watch().key());
        const bool changed = satisfied(waiting_of(0, request));
        require(ok && response.watch().has_value() == changed, "watch");
        require(!changed || response.watch().value() == *value, "a watched value");
        return;
      }
      case proto::Request::kMultiSet: {
        const auto keys = keys_of(request.multi_set().keys());
        const auto values = keys_of(request.multi_set().values());
        const bool valid = keys.has_value() && values.has_value() && keys->size() == values->size();
        require(response.code() == (valid ? 0 : kInvalid), "multi_set");
        for (std::size_t i = 0; valid && i < keys->size(); ++i) values_[(*keys)[i]] = (*values)[i];
        return;
      }
      case proto::Request::kAppend:
        require(ok && response.has_append(), "append");
        values_[request.append().key()] += request.append().value();
        return;
      case proto::Request::kListKeys: {
        std::vector<std::string> names;
        for (const auto& [key, value] : values_) {
          if (key.rfind(request.list_keys().prefix(), 0) == 0) names.push_back(key);
        }
        require(ok && keys_of(response.list_keys().keys()) == names, "list_keys");
        return;
      }
      case proto::Request::kCheck: {
        const auto keys = keys_of(request.check().keys());
        require(response.code() == (keys.has_value() ? 0 : kInvalid), "check");
        if (!keys.has_value()) return;
        bool all = true;
        for (const std::string& key : *keys) all = all && exists(key);
        require(response.check().all_exist() == all, "the result of a check");
        return;
      }
      case proto::Request::kQueuePush:
        require(ok && response.has_queue_push(), "queue_push");
        push(request.queue_push().queue(), request.queue_push().value());
        return;
      case proto::Request::kQueuePop: {
        const auto found = queues_.find(request.queue_pop().queue());
        require(ok && response.queue_pop().has_value() == (found != queues_.end()), "queue_pop");
        if (found == queues_.end()) return;
        require(response.queue_pop().value() == found->second.front(), "a popped item");
        found->second.pop_front();
        if (found->second.empty()) queues_.erase(found);
        return;
      }
      case proto::Request::kQueueLen: {
        const auto found = queues_.find(request.queue_len().queue());
        const int64_t length = found == queues_.end() ? 0 : static_cast<int64_t>(found->second.size());
        require(ok && response.queue_len().length() == length, "queue_len");
        return;
      }
      default:
        require(response.code() == kInvalid, "an empty request is not refused");
    }
  }
  void check_add(const proto::AddRequest& request, const proto::Response& response) {
    const auto found = values_.find(request.key());
    const std::string before = found == values_.end() ? "0" : found->second;
    char* end = nullptr;
    errno = 0;
    const int64_t number = std::strtoll(before.c_str(), &end, 10);
    int64_t sum = 0;
    const bool fits = errno == 0 && !__builtin_add_overflow(number, request.n(), &sum);
    // Only a number in the form that the store writes is surely valid, and only a text that C functions
    // cannot read is surely invalid.
    const bool surely_number = before == std::to_string(number);
    const bool surely_not_number = end == before.c_str();
    if (response.code() != 0) {
      require(response.code() == kInvalid && !(surely_number && fits), "add of a number failed");
      return;
    }
    require(!surely_not_number && fits && response.add().sum() == sum, "add");
    values_[request.key()] = std::to_string(sum);
  }

  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
  // Oldest first.
  std::vector<Waiting> waiting_;
  uint64_t next_id_ = 1;
  // The queue that the last request has made longer, and the pop to which it has given the item instead.
  std::optional<std::string> pushed_;
  // The queues of the sessions whose wait in turn an item has answered, until their next request, and the
  // queue of the turn that the last request has ended.
  std::map<Session, std::string> turns_;
  std::optional<std::string> ended_turn_;
  uint64_t given_ = 0;
};

void send_hello(TcpStoreService& service, Session session) {
  proto::Request request;
  request.mutable_hello()->set_magic(gradwire::store::kStoreMagic);
  request.mutable_hello()->set_version(gradwire::store::kStoreVersion);
  request.mutable_hello()->set_client(session);
  TcpStoreService::Answers answers;
  require(service.handle(session, request, kNow, answers).ok() && service.greeted(session), "hello");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gradwire::fuzzing::Input input(data, size);
  TcpStoreService service(/*number=*/7);
  Model model;
  for (Session session = 0; session < 3; ++session) send_hello(service, session);
  while (!input.empty()) {
    const Session session = input.number(1) % 3;
    proto::Request request;
    if (!request.ParseFromString(input.text(input.number(1)))) continue;
    TcpStoreService::Answers answers;
    const absl::Status status = service.handle(session, request, kNow, answers);
    for (TcpStoreService::Answer& answer : answers) answer.response = complete(answer);
    require(status.ok() != request.has_hello(), "a second Hello is accepted, or another request is refused");
    if (status.ok()) {
      model.expect(session, request, std::move(answers));
    } else {
      answers.clear();
      service.close(session, answers);
      model.close(session, answers);
      send_hello(service, session);
    }
    require(service.num_waiters() == model.num_waiting(), "the number of waiting calls is wrong");
  }
  TcpStoreService::Answers answers;
  service.stop(answers);
  require(answers.size() == model.num_waiting(), "a waiting call was not answered at the end");
  return 0;
}
