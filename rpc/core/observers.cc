#include "gradwire/rpc/core/observers.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"

namespace gradwire::rpc {

namespace {

// The answer to a question. Errors get the name of the worker.
proto::Envelope reply_to(const proto::Envelope& question, const Worker& self,
                         absl::StatusOr<std::string> body) {
  proto::Envelope reply;
  proto::Response& response = *reply.mutable_response();
  response.set_call_id(question.request().call_id());
  if (body.ok()) {
    response.set_body(*std::move(body));
  } else {
    status_to_proto(with_worker(body.status(), self.name), *response.mutable_status());
  }
  return reply;
}

}  // namespace

absl::StatusOr<std::optional<proto::Envelope>> Observers::receive(const Worker& self, From from,
                                                                  const proto::Envelope& message,
                                                                  absl::Time now) {
  if (message.has_hello()) {
    proto::Envelope reply;
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
  if (absl::Status refused = may_ask(from.link, now); !refused.ok())
    return reply_to(message, self, std::move(refused));
  return std::nullopt;
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

absl::Status Observers::may_ask(uint64_t link, absl::Time now) {
  MutexLock lock(mutex_);
  auto found = entries_.find(link);
  if (found == entries_.end()) {
    return absl::ResourceExhaustedError("this observer had to make room for another one");
  }
  Entry& entry = found->second;
  if (entry.pause == absl::InfiniteDuration()) {
    return absl::ResourceExhaustedError("an observer asks too often: wait for the answer");
  }
  if (now - entry.active < entry.pause) {
    return absl::ResourceExhaustedError(absl::StrCat("an observer asks too often: wait ",
                                                     absl::FormatDuration(entry.pause), " after an answer"));
  }
  entry.active = now;
  entry.pause = absl::InfiniteDuration();
  return absl::OkStatus();
}

proto::Envelope Observers::answer(const Worker& self, uint64_t link, const proto::Envelope& question) {
  const absl::Time begin = clock_.now();
  // Also after an exception: the observer may ask again.
  const absl::Cleanup answered = [&] {
    const absl::Duration taken = clock_.now() - begin;
    MutexLock lock(mutex_);
    // The link may have ended meanwhile.
    if (auto found = entries_.find(link); found != entries_.end()) {
      found->second.active += taken;
      found->second.pause = std::max(kPause, taken);
    }
  };
  absl::StatusOr<std::string> body;
  try {
    body = sink_->inspect(question.request().service().body());
  } catch (...) {
    body = caught("describing the state of this worker");
  }
  return reply_to(question, self, std::move(body));
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
