// Shows calls and handlers to libtorch's observers (at::RecordFunction) and profilers. The target is
// alwayslink, because no other code refers to it.
#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/profile/event_list.h"

// libtorch has two profilers, both of one thread: the current one, over the library Kineto, and the legacy
// one. Besides there are observers of all threads. A call begins on one thread and ends on another one. So:
//   - Observers of all threads, and the legacy profiler, see a RecordFunction that ends with the call. For
//     the legacy profiler it ends in the state of the calling thread, which contains the profiler.
//   - Kineto must not see that RecordFunction: it writes the end of an event to memory that it frees when it
//     is disabled, which may be before the call ends. So the whole call is reported to it at its end. If
//     Kineto was disabled before, its state, which the call holds, drops the event.
namespace gradwire::rpc {
namespace {

using torch::profiler::impl::ActiveProfilerType;

std::string label_of(const CallLabel& call, const char* verb) {
  return absl::StrCat(verb, call.callee, "(", call.caller_worker, " -> ", call.callee_worker, ")");
}

const char* verb_of(CallKind kind) {
  switch (kind) {
    case CallKind::kSync:
      return "rpc_sync#";
    case CallKind::kAsync:
      return "rpc_async#";
    case CallKind::kRemote:
      return "rpc_remote#";
    case CallKind::kFetch:
      return "";
  }
  return "";
}

// While it exists, the thread has no observers of its own.
class WithoutOwnObservers {
 public:
  explicit WithoutOwnObservers(bool hide) : before_(at::get_record_function_tls_()), hidden_(hide) {
    if (!hide) return;
    at::RecordFunctionTLS none = before_;
    none.sorted_tls_callbacks_.clear();
    at::set_record_function_tls_(none);
  }
  ~WithoutOwnObservers() {
    if (hidden_) at::set_record_function_tls_(before_);
  }
  WithoutOwnObservers(const WithoutOwnObservers&) = delete;
  WithoutOwnObservers& operator=(const WithoutOwnObservers&) = delete;

 private:
  const at::RecordFunctionTLS before_;
  const bool hidden_;
};

class TorchCall final : public ProfiledCall {
 public:
  explicit TorchCall(const CallLabel& call)
      : name_(label_of(call, verb_of(call.kind))),
        worker_(call.callee_worker),
        profiler_(torch::profiler::impl::profilerType()) {
    if (is_profiled()) thread_.emplace();
    const WithoutOwnObservers hide(is_kineto());
    record_.emplace(at::RecordScope::USER_SCOPE);
    if (record_->isActive()) {
      record_->_setAsync();
      record_->before(std::string_view(name_));
    }
    begin_ = c10::getTime();
  }
  ~TorchCall() override { end({}); }

  bool wants_events() const override { return is_profiled(); }

  void end(const Events& events) override {
    if (!record_) return;
    // The state of the caller's thread holds its profiler.
    std::optional<at::ThreadLocalStateGuard> guard;
    if (thread_) guard.emplace(*thread_);
    const int64_t end = c10::getTime();
    record_.reset();
    if (!is_profiled()) return;
    report(name_, begin_, end, "rpc");
    for (const RemoteEvent& event : place_events(events, begin_, end)) {
      report(absl::StrCat(name_, "#remote_op: ", event.name), event.begin, event.end, worker_);
    }
    thread_.reset();
  }

 private:
  bool is_kineto() const { return profiler_ == ActiveProfilerType::KINETO; }
  bool is_profiled() const { return is_kineto() || profiler_ == ActiveProfilerType::LEGACY; }

  // Kineto takes microseconds. The legacy profiler takes no times, and has seen the call itself.
  void report(const std::string& name, int64_t begin, int64_t end, const std::string& backend) const {
    if (is_kineto()) {
      torch::autograd::profiler::reportBackendEventToActiveKinetoProfiler(
          begin / 1000, end / 1000, /*debug_handle=*/-1, at::RecordScope::USER_SCOPE, name, backend);
    } else if (&name != &name_) {
      at::RecordFunction marker(at::RecordScope::USER_SCOPE);
      if (marker.isActive()) marker.before(std::string_view(name));
    }
  }

  const std::string name_;
  const std::string worker_;
  const ActiveProfilerType profiler_;
  // The state of the calling thread, if it has a profiler.
  std::optional<at::ThreadLocalState> thread_;
  std::optional<at::RecordFunction> record_;
  int64_t begin_ = 0;
};

// Collects what the observed thread does while it runs this handler.
class TorchHandler final : public ProfiledHandler {
 public:
  TorchHandler(const CallLabel& call, bool collect)
      : thread_(std::this_thread::get_id()), name_(label_of(call, "rpc_handler#")) {
    record_.emplace(at::RecordScope::USER_SCOPE);
    if (record_->isActive()) record_->before(std::string_view(name_));
    if (!collect) return;
    MutexLock lock(mutex_);
    events_.emplace(call.callee, c10::getTime());
    observer_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&TorchHandler::begin_event, &TorchHandler::end_event)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                     at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::USER_SCOPE}));
  }

  void leave() override {
    if (!record_) return;
    if (observer_) at::removeCallback(*observer_);
    record_.reset();
    MutexLock lock(mutex_);
    if (events_) events_->end(0, c10::getTime());
  }

  void take(proto::Response& response) override {
    if (std::this_thread::get_id() == thread_) leave();
    MutexLock lock(mutex_);
    if (!events_) return;
    events_->take(c10::getTime(), *response.mutable_events());
    events_.reset();
  }

 private:
  // An event that has begun, and the handler in which it did.
  struct Begun : at::ObserverContext {
    Begun(TorchHandler* of, std::size_t at) : handler(of), index(at) {}
    TorchHandler* handler;
    std::size_t index;
  };

  static std::unique_ptr<at::ObserverContext> begin_event(const at::RecordFunction& event) {
    auto* const handler = static_cast<TorchHandler*>(RunningHandler::current());
    if (handler == nullptr) return nullptr;
    MutexLock lock(handler->mutex_);
    if (!handler->events_) return nullptr;
    const std::size_t index = handler->events_->begin(event.name(), c10::getTime());
    if (index == EventList::kNone) return nullptr;
    return std::make_unique<Begun>(handler, index);
  }
  static void end_event(const at::RecordFunction&, at::ObserverContext* context) {
    const auto* const begun = static_cast<Begun*>(context);
    // Events nest, so one that has begun in this handler ends while the thread runs it.
    if (begun == nullptr || begun->handler != RunningHandler::current()) return;
    MutexLock lock(begun->handler->mutex_);
    if (begun->handler->events_) begun->handler->events_->end(begun->index, c10::getTime());
  }

  const std::thread::id thread_;
  const std::string name_;
  // Used only by that thread.
  std::optional<at::RecordFunction> record_;
  std::optional<at::CallbackHandle> observer_;

  Mutex mutex_;
  std::optional<EventList> events_ ABSL_GUARDED_BY(mutex_);
};

class TorchCallProfiler final : public CallProfiler {
 public:
  // The test that every operator of libtorch makes. It costs half of at::hasCallbacks().
  bool active() const override {
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  }
  std::unique_ptr<ProfiledCall> begin_call(const CallLabel& call) override {
    return std::make_unique<TorchCall>(call);
  }
  std::unique_ptr<ProfiledHandler> begin_handler(const CallLabel& call, bool collect) override {
    return std::make_unique<TorchHandler>(call, collect);
  }
};

[[maybe_unused]] const bool installed = [] {
  static auto* const profiler = new TorchCallProfiler;
  set_call_profiler(profiler);
  return true;
}();

}  // namespace
}  // namespace gradwire::rpc
