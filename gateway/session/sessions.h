#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"

namespace gradwire::rpc {
class RRefHandle;
}

namespace gradwire::gateway {

// Returns 16 random bytes from the operating system.
std::string random_id();

// The objects of one client. It ends once, by Sessions::end() or Sessions::expire(); all later calls fail
// with NotFound. Thread-safe. Its last owner may be a call that is still in flight.
class Session {
 public:
  // `max_objects` is the limit max_objects_per_session.
  Session(uint64_t max_objects, std::function<void(absl::Status)> on_end);

  const std::string& id() const { return id_; }

  // ResourceExhausted if the session has as many objects as it may have.
  absl::Status has_room() const;
  // Keeps the reference, and returns its handle. Errors: as has_room(). If it fails, the reference is
  // released.
  absl::StatusOr<std::string> add(std::shared_ptr<rpc::RRefHandle> reference);
  // NotFound for a handle that the session does not have.
  absl::StatusOr<std::shared_ptr<rpc::RRefHandle>> find(const std::string& handle) const;
  // Releases these handles, and returns how many of them existed.
  std::size_t release(const std::vector<std::string>& handles);
  std::size_t objects() const;

 private:
  friend class Sessions;
  friend class SessionUse;
  using Objects = HashMap<std::string, std::shared_ptr<rpc::RRefHandle>>;

  const std::string id_;
  const uint64_t max_objects_;
  const std::function<void(absl::Status)> on_end_;

  mutable Mutex mutex_;
  Objects objects_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Calls in flight, and the time of the last event.
  int uses_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mutex_);
};

// A call in flight that uses a session, which is not idle meanwhile. Empty for a call without a session.
class SessionUse {
 public:
  SessionUse() = default;
  SessionUse(std::shared_ptr<Session> session, std::function<absl::Time()> now);
  ~SessionUse();
  SessionUse(SessionUse&& other) noexcept = default;
  SessionUse& operator=(SessionUse&& other) noexcept;

  Session* get() const { return session_.get(); }
  Session* operator->() const { return session_.get(); }
  explicit operator bool() const { return session_ != nullptr; }

 private:
  void end();

  std::shared_ptr<Session> session_;
  std::function<absl::Time()> now_;
};

// All sessions of a gateway. Thread-safe.
class Sessions {
 public:
  // `now` returns the current time.
  Sessions(uint64_t max_objects, absl::Duration idle, std::function<absl::Time()> now);

  // `on_end` is called once, when the session ends for another reason than end(): with DeadlineExceeded if it
  // was idle, with Unavailable by end_all(). It must not block.
  std::shared_ptr<Session> open(std::function<void(absl::Status)> on_end);
  // A call begins to use the session. NotFound if it does not exist.
  absl::StatusOr<SessionUse> use(const std::string& id) const;
  // The client sent a sign of life.
  void touch(Session& session) const;
  // The client ended the session: releases its objects.
  void end(const std::string& id);
  // Ends the sessions that have been idle for too long.
  void expire();
  void end_all(const absl::Status& reason);

  std::size_t size() const;
  std::size_t objects() const;

 private:
  void end(const std::shared_ptr<Session>& session, const absl::Status& reason);

  const uint64_t max_objects_;
  const absl::Duration idle_;
  const std::function<absl::Time()> now_;

  mutable Mutex mutex_;
  HashMap<std::string, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::gateway
