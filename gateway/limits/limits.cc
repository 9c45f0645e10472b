#include "gradwire/gateway/limits/limits.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::gateway {
namespace {

// The key of the limit's name in the payload of a status.
constexpr absl::string_view kLimitUrl = "gradwire.dev/gateway/limit";

struct Use {
  uint64_t calls = 0;
  uint64_t sessions = 0;
  uint64_t bytes = 0;
};

}  // namespace

Reached reached_limit(const absl::Status& status) {
  Reached reached;
  if (const absl::optional<absl::Cord> payload = status.GetPayload(kLimitUrl)) {
    const std::pair<std::string, std::string> names = absl::StrSplit(std::string(*payload), ' ');
    reached.limit = names.first;
    reached.option = names.second;
  }
  return reached;
}

absl::Status limit_error(absl::string_view what, absl::string_view limit, absl::string_view option,
                         uint64_t value) {
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat(what, ": the limit ", limit, " is ", value, " (option ", option, " of the gateway)"));
  status.SetPayload(kLimitUrl, absl::Cord(absl::StrCat(limit, " ", option)));
  return status;
}

struct Quotas::State {
  explicit State(const Bounds& limits) : bounds(limits) {}

  const Bounds bounds;
  mutable Mutex mutex;
  Use all ABSL_GUARDED_BY(mutex);
  HashMap<std::string, Use> clients ABSL_GUARDED_BY(mutex);

  void give_back(const std::string& client, uint64_t calls, uint64_t sessions, uint64_t bytes) {
    MutexLock lock(mutex);
    auto found = clients.find(client);
    for (Use* use : {&all, &found->second}) {
      use->calls -= calls;
      use->sessions -= sessions;
      use->bytes -= bytes;
    }
    if (found->second.calls == 0 && found->second.sessions == 0) clients.erase(found);
  }
};

Quotas::Quotas(const Bounds& bounds) : state_(std::make_shared<State>(bounds)) {}

absl::StatusOr<Quotas::Permit> Quotas::enter_call(const std::string& client) {
  const Bounds& bounds = state_->bounds;
  Permit permit;
  {
    MutexLock lock(state_->mutex);
    if (state_->all.calls >= bounds.calls) {
      return limit_error("too many calls in flight", "max_calls", "max_calls", bounds.calls);
    }
    const auto found = state_->clients.find(client);
    if (found != state_->clients.end() && found->second.calls >= bounds.calls_per_client) {
      return limit_error("too many calls in flight on this connection", "max_calls_per_client",
                         "max_calls_per_client", bounds.calls_per_client);
    }
    ++state_->all.calls;
    ++state_->clients[client].calls;
  }
  permit.state_ = state_;
  permit.client_ = client;
  return permit;
}

absl::StatusOr<Quotas::Permit> Quotas::enter_session(const std::string& client) {
  const Bounds& bounds = state_->bounds;
  Permit permit;
  {
    MutexLock lock(state_->mutex);
    if (state_->all.sessions >= bounds.sessions) {
      return limit_error("too many sessions", "max_sessions", "max_sessions", bounds.sessions);
    }
    const auto found = state_->clients.find(client);
    if (found != state_->clients.end() && found->second.sessions >= bounds.sessions_per_client) {
      return limit_error("too many sessions on this connection", "max_sessions_per_client",
                         "max_sessions_per_client", bounds.sessions_per_client);
    }
    ++state_->all.sessions;
    ++state_->clients[client].sessions;
  }
  permit.state_ = state_;
  permit.client_ = client;
  permit.session_ = true;
  return permit;
}

uint64_t Quotas::calls() const {
  MutexLock lock(state_->mutex);
  return state_->all.calls;
}
uint64_t Quotas::sessions() const {
  MutexLock lock(state_->mutex);
  return state_->all.sessions;
}
uint64_t Quotas::bytes() const {
  MutexLock lock(state_->mutex);
  return state_->all.bytes;
}
std::size_t Quotas::clients() const {
  MutexLock lock(state_->mutex);
  return state_->clients.size();
}

Quotas::Permit::~Permit() {
  if (state_ == nullptr) return;
  static_cast<State*>(state_.get())->give_back(client_, session_ ? 0 : 1, session_ ? 1 : 0, bytes_);
}

Quotas::Permit::Permit(Permit&& other) noexcept { *this = std::move(other); }

Quotas::Permit& Quotas::Permit::operator=(Permit&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(client_, other.client_);
  std::swap(bytes_, other.bytes_);
  std::swap(session_, other.session_);
  return *this;
}

absl::Status Quotas::Permit::add_bytes(uint64_t bytes) {
  State& state = *static_cast<State*>(state_.get());
  const Bounds& bounds = state.bounds;
  // Each sum stays below 2^64, because both parts are at most a limit.
  if (bytes > bounds.bytes_per_call || bytes_ + bytes > bounds.bytes_per_call) {
    return limit_error(absl::StrCat("a call with ", bytes, " more bytes of tensors"), "max_call_bytes",
                       "max_call_bytes", bounds.bytes_per_call);
  }
  MutexLock lock(state.mutex);
  Use& client = state.clients[client_];
  if (client.bytes + bytes > bounds.bytes_per_client) {
    return limit_error("too many bytes of tensors in flight on this connection", "max_bytes_per_client",
                       "max_bytes_per_client", bounds.bytes_per_client);
  }
  if (state.all.bytes + bytes > bounds.bytes) {
    return limit_error("too many bytes of tensors in flight", "max_bytes", "max_bytes", bounds.bytes);
  }
  client.bytes += bytes;
  state.all.bytes += bytes;
  bytes_ += bytes;
  return absl::OkStatus();
}

void Quotas::Permit::drop_bytes() { drop_bytes(bytes_); }

void Quotas::Permit::drop_bytes(uint64_t bytes) {
  if (state_ == nullptr || bytes == 0) return;
  bytes_ -= bytes;
  static_cast<State*>(state_.get())->give_back(client_, 0, 0, bytes);
}

}  // namespace gradwire::gateway
