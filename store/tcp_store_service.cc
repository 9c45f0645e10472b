#include "store/tcp_store_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/random_id.h"
#include "store/limits.h"

namespace gradwire::store {
namespace {

constexpr char kAllWorkers[] = "all";
constexpr int32_t kMaxWorldSize = 1 << 20;

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      absl::IsUnavailable(status) ? kStoreStopped : "");
}

absl::Status stopped_status() { return absl::UnavailableError("the store's server is stopping"); }

absl::Status check_key(const std::string& key) {
  if (key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a key of ", key.size(), " bytes is over the limit of ", kMaxKeyBytes));
}

absl::Status check_value(const std::string& value) {
  if (value.size() <= kMaxValueBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a value of ", value.size(), " bytes is over the limit of ", kMaxValueBytes));
}

grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(to_grpc(status));
  return reactor;
}

}  // namespace

// A call that waits. Answered once, by whoever took it out of waiting_; gRPC says OnDone when nothing refers
// to it.
class TcpStoreService::WaitingCall final : public grpc::ServerUnaryReactor {
 public:
  WaitingCall(TcpStoreService& service, uint64_t id, Fill fill)
      : service_(service), id_(id), fill_(std::move(fill)) {}

  void answer(const Outcome& outcome, const grpc::Status& status) {
    if (status.ok()) fill_(outcome);
    Finish(status);
  }

 private:
  void OnCancel() override {
    service_.end(id_, grpc::Status(grpc::StatusCode::CANCELLED, "the client gave up"));
  }
  void OnDone() override { delete this; }

  TcpStoreService& service_;
  const uint64_t id_;
  Fill fill_;
};

TcpStoreService::TcpStoreService(Clock& clock) : server_(random_id()), timers_(clock) {}

TcpStoreService::~TcpStoreService() { timers_.shutdown(); }

std::size_t TcpStoreService::num_waiters() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

int32_t TcpStoreService::num_workers() const {
  MutexLock lock(mutex_);
  return static_cast<int32_t>(workers_.size());
}

absl::Status TcpStoreService::admit_locked(uint64_t server) const {
  if (stopped_) return stopped_status();
  if (server != server_) {
    return absl::AbortedError("the store's server has been restarted and has lost what was stored");
  }
  if (waiting_.size() >= kMaxWaiters) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store's server has ", kMaxWaiters, " waiting calls"));
  }
  return absl::OkStatus();
}

TcpStoreService::Reactor* TcpStoreService::keep_locked(uint64_t id, int64_t timeout_us, Fill fill) {
  // gRPC takes the call from here, also when it is answered before this returns.
  auto* call = new WaitingCall(*this, id, std::move(fill));
  uint64_t timer = 0;
  if (timeout_us >= 0) {
    timer = timers_.schedule(timers_.clock().now() + absl::Microseconds(timeout_us),
                             [this, id] { end(id, grpc::Status::OK); });
  }
  waiting_.emplace(id, Waiting{call, timer});
  return call;
}

std::vector<TcpStoreService::Ended> TcpStoreService::take_locked(const StoreTable::Wakeups& wakeups) {
  std::vector<Ended> ended;
  for (const StoreTable::Wakeup& wakeup : wakeups) {
    auto found = waiting_.find(wakeup.waiter);
    ended.push_back({found->second, {.value = wakeup.value, .missing = {}}});
    waiting_.erase(found);
  }
  return ended;
}

void TcpStoreService::drop_locked(uint64_t id, std::vector<Ended>& ended) {
  auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  std::vector<std::string> missing = table_.drop(id);
  group_.drop(id);
  ended.push_back({found->second, {.value = nullptr, .missing = std::move(missing)}});
  waiting_.erase(found);
}

void TcpStoreService::answer(std::vector<Ended> ended, const grpc::Status& status) {
  for (Ended& end : ended) {
    timers_.cancel(end.waiting.timer);
    end.waiting.call->answer(end.outcome, status);
  }
}

void TcpStoreService::end(uint64_t id, const grpc::Status& status) {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    drop_locked(id, ended);
  }
  answer(std::move(ended), status);
}

void TcpStoreService::stop() {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    while (!waiting_.empty()) drop_locked(waiting_.begin()->first, ended);
  }
  answer(std::move(ended), to_grpc(stopped_status()));
}

absl::Status TcpStoreService::count_worker_locked(const proto::HelloRequest& request,
                                                  std::vector<Ended>& ended) {
  const int32_t world_size = request.world_size();
  if (world_size == 0) return absl::OkStatus();
  if (world_size < 0 || world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("a world size of ", world_size, " is not in 1..", kMaxWorldSize));
  }
  if (world_size_ == 0) world_size_ = world_size;
  if (world_size_ != world_size) {
    return absl::InvalidArgumentError(absl::StrCat("this worker says that the world size is ", world_size,
                                                   ", one that came before said ", world_size_));
  }
  // More than the world size come when workers are restarted; they are not remembered.
  if (workers_.size() < static_cast<std::size_t>(world_size)) workers_.insert(request.client());
  if (workers_.size() == static_cast<std::size_t>(world_size) && group_.num_keys() == 0) {
    StoreTable::Wakeups wakeups;
    GRADWIRE_RETURN_IF_ERROR(group_.set(kAllWorkers, "", wakeups));
    ended = take_locked(wakeups);
  }
  return absl::OkStatus();
}

TcpStoreService::Reactor* TcpStoreService::Hello(Context* context, const proto::HelloRequest* request,
                                                 proto::HelloResponse* response) {
  std::vector<Ended> ended;
  Reactor* waiting = nullptr;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = admit_locked(server_);
    if (status.ok()) status = count_worker_locked(*request, ended);
    response->set_server(server_);
    response->set_workers(static_cast<int32_t>(workers_.size()));
    if (status.ok() && request->wait_for_workers() && request->world_size() > 0) {
      const uint64_t id = next_waiter_++;
      if (group_.watch(id, kAllWorkers, std::nullopt) == nullptr) {
        waiting = keep_locked(id, request->timeout_us(),
                              [this, response](const Outcome&) { response->set_workers(num_workers()); });
      }
    }
  }
  answer(std::move(ended), grpc::Status::OK);
  return waiting != nullptr ? waiting : finish(context, status);
}

TcpStoreService::Reactor* TcpStoreService::Set(Context* context, const proto::SetRequest* request,
                                               proto::SetResponse*) {
  absl::Status status = check_key(request->key());
  if (status.ok()) status = check_value(request->value());
  std::vector<Ended> ended;
  if (status.ok()) {
    StoreTable::Wakeups wakeups;
    MutexLock lock(mutex_);
    status = admit_locked(request->server());
    if (status.ok()) status = table_.set(request->key(), request->value(), wakeups);
    ended = take_locked(wakeups);
  }
  answer(std::move(ended), grpc::Status::OK);
  return finish(context, status);
}

TcpStoreService::Reactor* TcpStoreService::Add(Context* context, const proto::AddRequest* request,
                                               proto::AddResponse* response) {
  absl::Status status = check_key(request->key());
  std::vector<Ended> ended;
  if (status.ok()) {
    StoreTable::Wakeups wakeups;
    MutexLock lock(mutex_);
    status = admit_locked(request->server());
    if (status.ok()) {
      absl::StatusOr<int64_t> sum = table_.add(request->key(), request->n(), wakeups);
      status = sum.status();
      if (sum.ok()) response->set_sum(*sum);
    }
    ended = take_locked(wakeups);
  }
  answer(std::move(ended), grpc::Status::OK);
  return finish(context, status);
}

TcpStoreService::Reactor* TcpStoreService::CompareSet(Context* context,
                                                      const proto::CompareSetRequest* request,
                                                      proto::CompareSetResponse* response) {
  absl::Status status = check_key(request->key());
  if (status.ok()) status = check_value(request->expected());
  if (status.ok()) status = check_value(request->desired());
  std::vector<Ended> ended;
  if (status.ok()) {
    StoreTable::Wakeups wakeups;
    MutexLock lock(mutex_);
    status = admit_locked(request->server());
    if (status.ok()) {
      absl::StatusOr<std::string> current =
          table_.compare_set(request->key(), request->expected(), request->desired(), wakeups);
      status = current.status();
      if (current.ok()) response->set_current(*std::move(current));
    }
    ended = take_locked(wakeups);
  }
  answer(std::move(ended), grpc::Status::OK);
  return finish(context, status);
}

TcpStoreService::Reactor* TcpStoreService::Delete(Context* context, const proto::DeleteRequest* request,
                                                  proto::DeleteResponse* response) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = admit_locked(request->server());
    if (status.ok()) response->set_existed(table_.erase(request->key()));
  }
  return finish(context, status);
}

TcpStoreService::Reactor* TcpStoreService::NumKeys(Context* context, const proto::NumKeysRequest* request,
                                                   proto::NumKeysResponse* response) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = admit_locked(request->server());
    if (status.ok()) response->set_count(table_.num_keys(request->prefix()));
  }
  return finish(context, status);
}

TcpStoreService::Reactor* TcpStoreService::Wait(Context* context, const proto::WaitRequest* request,
                                                proto::WaitResponse* response) {
  absl::Status status;
  if (static_cast<std::size_t>(request->keys_size()) > kMaxKeysPerWait) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("a wait for ", request->keys_size(), " keys is over the limit of ", kMaxKeysPerWait));
  }
  for (const std::string& key : request->keys()) {
    if (status.ok()) status = check_key(key);
  }
  if (status.ok()) {
    MutexLock lock(mutex_);
    status = admit_locked(request->server());
    const uint64_t id = next_waiter_++;
    if (status.ok() && !table_.wait(id, {request->keys().begin(), request->keys().end()})) {
      return keep_locked(id, request->timeout_us(), [response](const Outcome& outcome) {
        for (const std::string& key : outcome.missing) response->add_missing(key);
      });
    }
  }
  return finish(context, status);
}

TcpStoreService::Reactor* TcpStoreService::Watch(Context* context, const proto::WatchRequest* request,
                                                 proto::WatchResponse* response) {
  absl::Status status = check_key(request->key());
  if (status.ok()) status = check_value(request->last_value());
  StoreTable::Value value;
  if (status.ok()) {
    MutexLock lock(mutex_);
    status = admit_locked(request->server());
    if (status.ok()) {
      const uint64_t id = next_waiter_++;
      value = table_.watch(
          id, request->key(),
          request->has_last_value() ? std::optional<absl::string_view>(request->last_value()) : std::nullopt);
      if (value == nullptr) {
        return keep_locked(id, request->timeout_us(), [response](const Outcome& outcome) {
          if (outcome.value != nullptr) response->set_value(*outcome.value);
        });
      }
    }
  }
  if (value != nullptr) response->set_value(*value);
  return finish(context, status);
}

}  // namespace gradwire::store
