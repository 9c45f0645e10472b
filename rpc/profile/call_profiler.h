#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gradwire/proto/rpc.pb.h"

// Lets profilers see calls and handlers. The implementation for libtorch's profilers and observers is in
// rpc/profile/torch_call_profiler.cc. Without it, and while no observer is registered, a call costs one test.
namespace gradwire::rpc {

enum class CallKind { kSync, kAsync, kRemote, kFetch };

// A call as profilers name it.
struct CallLabel {
  CallKind kind = CallKind::kAsync;
  const std::string& callee;
  const std::string& caller_worker;
  const std::string& callee_worker;
};

// A call that profilers see, from its start to its answer. The destructor ends it without events. Not
// thread-safe, but need not stay on one thread.
class ProfiledCall {
 public:
  using Events = google::protobuf::RepeatedPtrField<proto::ProfiledEvent>;

  virtual ~ProfiledCall() = default;
  // Whether the events of the callee are wanted (Request.profile).
  virtual bool wants_events() const = 0;
  // The call has been answered with these events, which come from another process and are not checked. Call
  // at most once.
  virtual void end(const Events& events) = 0;
};

// A handler that profilers see. Its two ends may be on different threads. Thread-safe.
class ProfiledHandler {
 public:
  virtual ~ProfiledHandler() = default;
  // The handler has returned. Call on the thread that runs it, before the destructor. Idempotent.
  virtual void leave() = 0;
  // Moves the events so far to the answer. As leave(), if the calling thread runs the handler.
  virtual void take(proto::Response& response) = 0;
};

// Thread-safe.
class CallProfiler {
 public:
  // Whether any observer is registered for the calling thread.
  virtual bool active() const = 0;
  virtual std::unique_ptr<ProfiledCall> begin_call(const CallLabel& call) = 0;
  // The calling thread begins to run a handler. `collect`: the caller asks for its events.
  virtual std::unique_ptr<ProfiledHandler> begin_handler(const CallLabel& call, bool collect) = 0;

 protected:
  ~CallProfiler() = default;
};

namespace profile_internal {
inline constinit CallProfiler* installed = nullptr;
inline constinit thread_local ProfiledHandler* running = nullptr;
}  // namespace profile_internal

// Called during static initialisation. `profiler` is never destroyed.
inline void set_call_profiler(CallProfiler* profiler) { profile_internal::installed = profiler; }
// nullptr if no profiler is installed.
inline CallProfiler* call_profiler() { return profile_internal::installed; }
// nullptr if no profiler is installed, or nothing observes the calling thread.
inline CallProfiler* active_call_profiler() {
  CallProfiler* const profiler = profile_internal::installed;
  return profiler != nullptr && profiler->active() ? profiler : nullptr;
}

// In its scope the thread runs this handler, which may be nullptr. A thread that waits in a handler may run
// another one meanwhile.
class RunningHandler {
 public:
  explicit RunningHandler(ProfiledHandler* handler)
      : outer_(std::exchange(profile_internal::running, handler)) {}
  ~RunningHandler() { profile_internal::running = outer_; }
  RunningHandler(const RunningHandler&) = delete;
  RunningHandler& operator=(const RunningHandler&) = delete;

  // The handler that the calling thread runs, if profilers see it.
  static ProfiledHandler* current() { return profile_internal::running; }

 private:
  ProfiledHandler* const outer_;
};

}  // namespace gradwire::rpc
