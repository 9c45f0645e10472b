#include "gradwire/gateway/session/sessions.h"

#include <sys/random.h>

#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/gateway/limits/limits.h"

namespace gradwire::gateway {
namespace {

absl::Status ended_error() {
  return absl::NotFoundError("the session has ended or never existed: open one with OpenSession");
}

}  // namespace

std::string random_id() {
  std::string id(16, '\0');
  std::size_t filled = 0;
  while (filled < id.size()) {
    const ssize_t got = getrandom(id.data() + filled, id.size() - filled, 0);
    if (got > 0) {
      filled += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      // An old kernel. The random device has the same source.
      std::random_device device("/dev/urandom");
      for (; filled < id.size(); ++filled) id[filled] = static_cast<char>(device());
    }
  }
  return id;
}

Session::Session(uint64_t max_objects, std::function<void(absl::Status)> on_end)
    : id_(random_id()), max_objects_(max_objects), on_end_(std::move(on_end)) {}

absl::Status Session::has_room() const {
  MutexLock lock(mutex_);
  if (ended_) return ended_error();
  if (objects_.size() < max_objects_) return absl::OkStatus();
  return limit_error("too many objects in the session", "max_objects_per_session", "max_objects_per_session",
                     max_objects_);
}

absl::StatusOr<std::string> Session::add(std::shared_ptr<rpc::RRefHandle> reference) {
  std::string handle = random_id();
  MutexLock lock(mutex_);
  if (ended_) return ended_error();
  if (objects_.size() >= max_objects_) {
    return limit_error("too many objects in the session", "max_objects_per_session",
                       "max_objects_per_session", max_objects_);
  }
  objects_.emplace(handle, std::move(reference));
  return handle;
}

absl::StatusOr<std::shared_ptr<rpc::RRefHandle>> Session::find(const std::string& handle) const {
  MutexLock lock(mutex_);
  if (ended_) return ended_error();
  const auto found = objects_.find(handle);
  if (found == objects_.end()) {
    return absl::NotFoundError(
        "unknown handle: got one that this session does not have, or that was released");
  }
  return found->second;
}

std::size_t Session::release(const std::vector<std::string>& handles) {
  // Destroyed after the lock is given back.
  std::vector<std::shared_ptr<rpc::RRefHandle>> released;
  {
    MutexLock lock(mutex_);
    for (const std::string& handle : handles) {
      const auto found = objects_.find(handle);
      if (found == objects_.end()) continue;
      released.push_back(std::move(found->second));
      objects_.erase(found);
    }
  }
  return released.size();
}

std::size_t Session::objects() const {
  MutexLock lock(mutex_);
  return objects_.size();
}

SessionUse::SessionUse(std::shared_ptr<Session> session, std::function<absl::Time()> now)
    : session_(std::move(session)), now_(std::move(now)) {
  MutexLock lock(session_->mutex_);
  ++session_->uses_;
}

SessionUse::~SessionUse() { end(); }

SessionUse& SessionUse::operator=(SessionUse&& other) noexcept {
  end();
  session_ = std::move(other.session_);
  now_ = std::move(other.now_);
  return *this;
}

void SessionUse::end() {
  if (session_ == nullptr) return;
  {
    MutexLock lock(session_->mutex_);
    --session_->uses_;
    session_->last_ = now_();
  }
  session_ = nullptr;
}

Sessions::Sessions(uint64_t max_objects, absl::Duration idle, std::function<absl::Time()> now)
    : max_objects_(max_objects), idle_(idle), now_(std::move(now)) {}

std::shared_ptr<Session> Sessions::open(std::function<void(absl::Status)> on_end) {
  auto session = std::make_shared<Session>(max_objects_, std::move(on_end));
  touch(*session);
  MutexLock lock(mutex_);
  sessions_.emplace(session->id(), session);
  return session;
}

absl::StatusOr<SessionUse> Sessions::use(const std::string& id) const {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return ended_error();
    session = found->second;
  }
  return SessionUse(std::move(session), now_);
}

void Sessions::touch(Session& session) const {
  MutexLock lock(session.mutex_);
  session.last_ = now_();
}

void Sessions::end(const std::string& id) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    session = std::move(found->second);
    sessions_.erase(found);
  }
  end(session, absl::OkStatus());
}

void Sessions::end(const std::shared_ptr<Session>& session, const absl::Status& reason) {
  // Destroyed after the lock is given back.
  Session::Objects objects;
  {
    MutexLock lock(session->mutex_);
    if (std::exchange(session->ended_, true)) return;
    objects.swap(session->objects_);
  }
  if (!reason.ok() && session->on_end_ != nullptr) session->on_end_(reason);
}

void Sessions::expire() {
  const absl::Time now = now_();
  std::vector<std::shared_ptr<Session>> idle;
  {
    MutexLock lock(mutex_);
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      bool ends = false;
      {
        MutexLock session_lock(at->second->mutex_);
        ends = at->second->uses_ == 0 && now - at->second->last_ >= idle_;
      }
      if (ends) {
        idle.push_back(std::move(at->second));
        sessions_.erase(at++);
      } else {
        ++at;
      }
    }
  }
  for (const std::shared_ptr<Session>& session : idle) {
    end(session,
        absl::DeadlineExceededError(absl::StrCat("the session was idle for ", absl::FormatDuration(idle_),
                                                 " (option session_idle of the gateway)")));
  }
}

void Sessions::end_all(const absl::Status& reason) {
  HashMap<std::string, std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(mutex_);
    sessions.swap(sessions_);
  }
  for (const auto& [id, session] : sessions) end(session, reason);
}

std::size_t Sessions::size() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

std::size_t Sessions::objects() const {
  MutexLock lock(mutex_);
  std::size_t objects = 0;
  for (const auto& [id, session] : sessions_) objects += session->objects();
  return objects;
}

}  // namespace gradwire::gateway
