#include "gradwire/rpc/streams/stream_source.h"

#include <optional>
#include <tuple>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/rpc/registry/serve.h"

namespace gradwire::rpc {
namespace {

// The parts that cancel() takes out of a source. They are ended and destroyed on the executor.
struct Remains {
  std::shared_ptr<StreamSource> source;
  std::map<uint64_t, std::shared_ptr<ServerCall>> takes;
  std::deque<Promise<void>> writes;
  std::coroutine_handle<> coroutine;
  ExecutionState execution_state;
  std::shared_ptr<void> items;
  std::shared_ptr<void> kept;
  absl::Status reason;

  void end() {
    {
      ScopedExecutionState scope(execution_state);
      if (coroutine) coroutine.destroy();
      items = nullptr;
      kept = nullptr;
    }
    for (auto& [sequence, call] : takes) call->fail(reason);
    for (const Promise<void>& write : writes) write.set_error(reason);
  }
};

// The reason for cancelling a stream whose take was ended with `reason`. Unavailable means that the
// producer's worker shuts down, and the reader must learn that. Anything else means that the reader waits no
// longer.
absl::Status end_of_take(const absl::Status& reason) {
  if (absl::IsUnavailable(reason)) return reason;
  return absl::CancelledError(absl::StrCat("the reader of the stream is gone: ", reason.message()));
}

}  // namespace

StreamSource::StreamSource(std::unique_ptr<StreamItems> items)
    : items_(std::move(items)),
      maker_(CallContext::current()),
      batch_type_(items_->batch_type()),
      costs_(items_->costs()) {}

StreamSource::~StreamSource() {
  if (coroutine_) coroutine_.destroy();
}

// The coroutine has run no user code yet: it starts with the first take. So it gets the state of the handler
// here, but a CallContext of its own, because the call that made the stream ends now.
void StreamSource::returned(ServerCall& call, std::shared_ptr<void> kept) {
  const std::shared_ptr<const CallContext> context = CallContext::current();
  const WorkerInfo caller = context == nullptr ? WorkerInfo() : context->caller();
  ExecutionSlot<CallContext>::Scope scope(std::make_shared<CallContext>(
      Worker{caller.name, caller.id, 0}, absl::InfiniteFuture(), cancellation_.token(),
      context == nullptr ? CallIdentity() : context->identity()));
  MutexLock lock(mutex_);
  executor_ = call.executor();
  callee_ = call.callee();
  reader_ = caller;
  // Without a coroutine nothing of the call is needed any more.
  if (coroutine_) kept_ = std::move(kept);
  execution_state_ = ExecutionState::capture();
  returned_ = true;
}

void StreamSource::take(std::shared_ptr<ServerCall> call, uint64_t sequence, const TakeLimits& limits) {
  const std::shared_ptr<const CallContext> context = CallContext::current();
  absl::Status refused;
  call->finish_later();
  {
    MutexLock lock(mutex_);
    if (!cancelled_.ok()) {
      refused = cancelled_;
    } else if (context != nullptr && !(context->caller() == reader_)) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("the stream of \"", callee_, "\" has another reader: worker \"", reader_.name, "\""));
    } else {
      refused = with_context(buffer_.add_take(sequence, limits), absl::StrCat("\"", callee_, "\""));
      if (refused.ok()) takes_.emplace(sequence, call);
    }
  }
  if (!refused.ok()) {
    call->fail(refused);
    return;
  }
  // The reader cancels its takes, and so does its death, or the shutdown of this worker. The token owns the
  // callback, so the callback must not own the call.
  if (context != nullptr) {
    const CancellationToken& token = context->cancellation();
    token.on_cancelled_inline([weak = weak_from_this(), token] {
      const std::shared_ptr<StreamSource> source = weak.lock();
      if (source != nullptr) source->cancel(end_of_take(token.reason()));
    });
  }
  admit_writes();
  go_on();
  answer_takes();
}

void StreamSource::cancel(const absl::Status& reason) noexcept {
  // The reader and the coroutine would wait.
  run_or_end("the cancellation of a stream", [&] { cancel_all(reason); });
}

void StreamSource::cancel_all(const absl::Status& reason) {
  auto remains = std::make_shared<Remains>();
  std::shared_ptr<Executor> executor;
  {
    MutexLock lock(mutex_);
    if (!cancelled_.ok()) return;
    cancelled_ = reason.ok() ? absl::CancelledError("the stream was cancelled") : reason;
    remains->takes.swap(takes_);
    remains->writes.swap(writes_);
    remains->items = items_->drop();
    remains->execution_state = execution_state_;
    remains->reason = cancelled_;
    if (state_ == State::kWaitsForRoom || state_ == State::kAwaits) {
      remains->coroutine = std::exchange(coroutine_, nullptr);
      state_ = State::kNone;
      // The coroutine refers to it, so it must live longer.
      remains->kept = std::move(kept_);
    }
    executor = executor_;
  }
  cancellation_.cancel(reason, executor.get());
  // The frame of the coroutine refers to this source. The destructor of the source has no coroutine.
  remains->source = weak_from_this().lock();
  if (executor == nullptr) {
    remains->end();
  } else {
    executor->post_or_run([remains] { remains->end(); });
  }
}

absl::Status StreamSource::cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

std::string StreamSource::callee() const {
  MutexLock lock(mutex_);
  return callee_;
}

void StreamSource::end(const absl::Status& status) {
  std::deque<Promise<void>> writes;
  {
    MutexLock lock(mutex_);
    if (!cancelled_.ok() || buffer_.ended()) return;
    // Waiting writes come before the end.
    writes.swap(writes_);
    for (std::size_t i = 0; i < writes.size(); ++i) buffer_.push(items_->admit_write());
    buffer_.end();
    end_status_ = status;
  }
  for (const Promise<void>& write : writes) write.set_value();
  answer_soon();
}

void StreamSource::set_coroutine(std::coroutine_handle<> coroutine) {
  MutexLock lock(mutex_);
  coroutine_ = coroutine;
  state_ = State::kWaitsForRoom;
}

void StreamSource::suspended_at_yield() {
  ExecutionState state = ExecutionState::capture();
  {
    MutexLock lock(mutex_);
    execution_state_ = std::move(state);
    state_ = State::kWaitsForRoom;
  }
  go_on();
}

uint64_t StreamSource::suspended_at_await() {
  ExecutionState state = ExecutionState::capture();
  MutexLock lock(mutex_);
  execution_state_ = std::move(state);
  state_ = State::kAwaits;
  return ++await_;
}

void StreamSource::resume_await(uint64_t await) {
  {
    MutexLock lock(mutex_);
    if (state_ != State::kAwaits || await != await_ || !cancelled_.ok() || run_posted_) return;
    run_posted_ = true;
  }
  post_run();
}

void StreamSource::coroutine_ended(const absl::Status& status) {
  std::shared_ptr<void> kept;
  {
    MutexLock lock(mutex_);
    coroutine_ = nullptr;
    state_ = State::kNone;
    kept = std::move(kept_);
  }
  kept = nullptr;
  run_or_cancel([&] { end(status); });
}

StreamSource::Write StreamSource::begin_write_locked(uint64_t bytes, Promise<void>& promise,
                                                     absl::Status& status) {
  if (!cancelled_.ok()) {
    status = cancelled_;
    return Write::kRefused;
  }
  if (buffer_.ended()) {
    status = absl::FailedPreconditionError("cannot write to a stream after finish()");
    return Write::kRefused;
  }
  const bool before_return = !returned_ && is_handler_locked();
  if (writes_.empty() && (before_return ? buffer_.has_room_unreturned() : buffer_.has_room())) {
    buffer_.push(bytes);
    return Write::kAdded;
  }
  // The handler would wait for a reader, which cannot come before the handler has returned.
  if (before_return) {
    status = absl::ResourceExhaustedError(absl::StrCat("the stream has ", buffer_.items(),
                                                       " items, and the handler has not returned it yet; "
                                                       "return it and write from another thread, or make the "
                                                       "handler a coroutine that yields"));
    return Write::kRefused;
  }
  writes_.push_back(promise);
  return Write::kWaits;
}

bool StreamSource::is_handler_locked() const {
  const std::shared_ptr<const CallContext> maker = maker_.lock();
  return maker != nullptr && maker == CallContext::current() && maker_thread_ == std::this_thread::get_id();
}

bool StreamSource::begin_yield_locked(uint64_t bytes, bool& goes_on, bool& answers) {
  if (!cancelled_.ok()) return false;
  buffer_.push(bytes);
  goes_on = buffer_.has_room();
  answers = !answer_posted_ && buffer_.can_answer();
  answer_posted_ |= answers;
  return true;
}

// While the coroutine runs, an answer is sent by a task and not by the coroutine's thread, for two reasons:
// the next item may take long, and encoding must not run below user code. If the coroutine usually runs for a
// short time only, the pool starts the task after it (or after a millisecond), and one answer carries many
// items.
void StreamSource::answer_soon() {
  {
    MutexLock lock(mutex_);
    if (answer_posted_ || !buffer_.can_answer()) return;
    answer_posted_ = true;
  }
  post_answer();
}

void StreamSource::post_answer() {
  std::shared_ptr<Executor> executor;
  {
    MutexLock lock(mutex_);
    executor = executor_;
  }
  run_or_cancel(
      [&] { executor->post_clean([self = shared_from_this()] { self->answer_takes(); }, &costs_.answer); });
}

bool StreamSource::run_or_cancel(absl::FunctionRef<void()> step) noexcept {
  try {
    step();
    return true;
  } catch (...) {
    cancel(describe_error([this] { return caught_in(callee()); }));
    return false;
  }
}

void StreamSource::answer_takes() {
  bool answered = false;
  // Without memory the items of the answer are lost.
  const auto answer_all = [&] {
    while (answer_take()) answered = true;
  };
  if (!run_or_cancel(answer_all) || !answered) return;
  // An item that exceeds all takes leaves no room until it is answered, and then the takes behind it are room
  // again. No further take need come.
  admit_writes();
  go_on();
  answer_soon();
}

bool StreamSource::answer_take() {
  std::shared_ptr<ServerCall> call;
  std::shared_ptr<void> batch;
  std::vector<StreamFencePtr> fences;
  absl::Status failed;
  bool lost = false;
  {
    MutexLock lock(mutex_);
    answer_posted_ = false;
    const std::optional<StreamBuffer::Answer> answer = buffer_.next_answer();
    if (!answer) return false;
    auto take = takes_.find(answer->sequence);
    // cancel() has taken the call.
    if (take == takes_.end()) return true;
    call = std::move(take->second);
    takes_.erase(take);
    if (answer->items == 0 && !end_status_.ok()) {
      failed = with_context(end_status_, absl::StrCat("\"", callee_, "\""));
    } else {
      try {
        batch = items_->take(answer->items, answer->last && end_status_.ok(), callee_, fences);
      } catch (...) {
        failed = caught_in(callee_);
        lost = true;
      }
    }
  }
  if (failed.ok()) {
    call->finish(std::move(batch), batch_type_, join_fences(std::move(fences)));
  } else {
    call->fail(failed);
    // The items that were taken are lost, so the stream cannot go on.
    if (lost) cancel(failed);
  }
  return true;
}

void StreamSource::admit_writes() {
  std::vector<Promise<void>> admitted;
  {
    MutexLock lock(mutex_);
    while (!writes_.empty() && buffer_.has_room()) {
      buffer_.push(items_->admit_write());
      admitted.push_back(std::move(writes_.front()));
      writes_.pop_front();
    }
  }
  for (const Promise<void>& write : admitted) write.set_value();
}

void StreamSource::go_on() {
  {
    MutexLock lock(mutex_);
    if (state_ != State::kWaitsForRoom || run_posted_ || !cancelled_.ok() || !buffer_.has_room()) return;
    run_posted_ = true;
  }
  post_run();
}

// If the executor refuses the task, because the agent shuts down, the coroutine stays suspended, and the
// destructor destroys it.
void StreamSource::post_run() {
  std::shared_ptr<Executor> executor;
  {
    MutexLock lock(mutex_);
    executor = executor_;
  }
  run_or_cancel([&] { executor->post_clean([self = shared_from_this()] { self->run(); }, &costs_.run); });
}

void StreamSource::run() {
  std::coroutine_handle<> coroutine;
  ExecutionState state;
  {
    MutexLock lock(mutex_);
    run_posted_ = false;
    if (!cancelled_.ok() || (state_ != State::kWaitsForRoom && state_ != State::kAwaits)) return;
    state_ = State::kRunning;
    coroutine = coroutine_;
    state = execution_state_;
  }
  {
    ScopedExecutionState scope(state);
    coroutine.resume();
  }
  // From here on another thread may run the coroutine, and its frame may be gone.
  answer_takes();
  destroy_if_cancelled();
}

void StreamSource::destroy_if_cancelled() {
  Remains remains;
  {
    MutexLock lock(mutex_);
    if (cancelled_.ok() || state_ == State::kRunning || state_ == State::kNone) return;
    remains.coroutine = std::exchange(coroutine_, nullptr);
    remains.execution_state = execution_state_;
    remains.kept = std::move(kept_);
    state_ = State::kNone;
  }
  remains.end();
}

void serve_take(const std::shared_ptr<ServerCall>& call) {
  using Arguments = std::tuple<uint64_t, uint64_t, uint64_t>;
  absl::StatusOr<Arguments> arguments = serve_internal::decode_arguments<Arguments>(*call);
  if (!arguments.ok()) {
    call->fail(arguments.status());
    return;
  }
  // The names have been compared, but names of types may coincide.
  if (call->target_type() == nullptr || call->target_type()->id() != typeid(StreamOwner)) {
    call->fail(absl::InvalidArgumentError(
        absl::StrCat("\"", call->callee(), "\" was called on a value that is not a stream")));
    return;
  }
  const auto [sequence, items, bytes] = *arguments;
  static_cast<StreamOwner*>(call->target().get())->source().take(call, sequence, {items, bytes});
}

}  // namespace gradwire::rpc
