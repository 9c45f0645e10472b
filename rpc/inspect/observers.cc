#include "gradwire/rpc/inspect/observers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"

namespace gradwire::rpc {

absl::StatusOr<proto::Envelope> Observers::receive(const Worker& self, From from,
                                                   const proto::Envelope& message, absl::Time now) {
  proto::Envelope reply;
  if (message.has_hello()) {
    GRADWIRE_RETURN_IF_ERROR(admit(std::move(from), message.hello().name(), now));
    proto::Hello& hello = *reply.mutable_hello();
    hello.set_protocol_version(message.hello().protocol_version());
    hello.set_id(self.id);
    hello.set_name(self.name);
    hello.set_incarnation(self.incarnation);
    return reply;
  }
  if (from.queued_bytes > kMaxQueuedBytes) {
    return absl::ResourceExhaustedError("an observer does not read its answers");
  }
  proto::Response& response = *reply.mutable_response();
  response.set_call_id(message.request().call_id());
  absl::StatusOr<std::string> body = ask(from.link, message.request().service().body(), now);
  if (body.ok()) {
    response.set_body(*std::move(body));
  } else {
    status_to_proto(with_worker(body.status(), self.name), *response.mutable_status());
  }
  return reply;
}

absl::Status Observers::admit(From from, const std::string& name, absl::Time now) {
  if (sink_ == nullptr || limit_ == 0) {
    return absl::PermissionDeniedError(
        "this worker accepts no observers (RpcBackendOptions::max_observers is 0)");
  }
  GRADWIRE_RETURN_IF_ERROR(sink_->may_observe(name));
  std::function<void()> leave;
  {
    MutexLock lock(mutex_);
    if (entries_.size() >= limit_) {
      const auto oldest =
          std::min_element(entries_.begin(), entries_.end(),
                           [](const auto& a, const auto& b) { return a.second.active < b.second.active; });
      if (now - oldest->second.active < kIdle) {
        return absl::ResourceExhaustedError(
            absl::StrCat("this worker has ", entries_.size(),
                         " observers already, the most that it allows: end one of them, or raise "
                         "RpcBackendOptions::max_observers"));
      }
      leave = std::move(oldest->second.leave);
      entries_.erase(oldest);
    }
    entries_[from.link] = {now, absl::ZeroDuration(), std::move(from.leave)};
  }
  if (leave != nullptr) leave();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Observers::ask(uint64_t link, const std::string& body, absl::Time now) {
  {
    MutexLock lock(mutex_);
    auto found = entries_.find(link);
    if (found == entries_.end()) {
      return absl::ResourceExhaustedError("this observer had to make room for another one");
    }
    Entry& entry = found->second;
    if (now - entry.active < entry.pause) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "an observer asks too often: wait ", absl::FormatDuration(entry.pause), " after an answer"));
    }
    entry.active = now;
    entry.pause = kPause;
  }
  const absl::Time begin = clock_.now();
  absl::StatusOr<std::string> answer = sink_->inspect(body);
  const absl::Duration taken = clock_.now() - begin;
  MutexLock lock(mutex_);
  // The link may have ended meanwhile.
  if (auto found = entries_.find(link); found != entries_.end()) {
    found->second.active = now + taken;
    found->second.pause = std::max(kPause, taken);
  }
  return answer;
}

void Observers::remove(uint64_t link) {
  MutexLock lock(mutex_);
  entries_.erase(link);
}

std::size_t Observers::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace gradwire::rpc
