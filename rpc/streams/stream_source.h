#pragma once

#include <coroutine>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/streams/stream_batch.h"
#include "gradwire/rpc/streams/stream_buffer.h"

namespace gradwire::rpc {

// The items of one stream, of whose type only the subclass knows. The lock of the source guards it, so
// nothing here runs code of a user.
class StreamItems {
 public:
  // How long the coroutine usually runs until it is suspended, and how long answers take. Tasks need costs
  // that outlive them, so all streams of a type share them.
  struct Costs {
    TaskCost run;
    TaskCost answer;
  };

  virtual ~StreamItems() = default;
  // Moves the next items into a batch, in the type of batch_type(), and their fences to `fences`.
  virtual std::shared_ptr<void> take(std::size_t count, bool last, const std::string& callee,
                                     std::vector<StreamFencePtr>& fences) = 0;
  // Moves the item of the first waiting write to the items. Returns its size.
  virtual uint64_t admit_write() = 0;
  // Moves everything out, for its destruction.
  virtual std::shared_ptr<void> drop() = 0;

  // Constant.
  virtual const TypeOps* batch_type() const = 0;
  virtual Costs& costs() const = 0;
};

// The producer's end of one stream, whatever the type of the items: it runs the coroutine or lets the writer
// go on, and answers takes. StreamBuffer decides when. Thread-safe.
//
// A producer is a coroutine or a writer. The states of a coroutine:
//   kWaitsForRoom  suspended at the start or at a co_yield, until the buffer has room
//   kAwaits        suspended at the co_await of a Future
//   kRunning       on a thread of the executor
//   kNone          ended, destroyed, or there is a writer
// Only the thread that changes the state from kWaitsForRoom or kAwaits may touch the frame.
class StreamSource : public std::enable_shared_from_this<StreamSource> {
 public:
  // REQUIRES: no thread runs the coroutine.
  virtual ~StreamSource();

  // ---- The handler returns the stream.

  // The handler of `call` has returned the stream, so takes may arrive. `kept` lives as long as the
  // coroutine.
  void returned(ServerCall& call, std::shared_ptr<void> kept);

  // ---- The reader.

  // A take arrived. Ends `call`, now or later. Called by its handler.
  void take(std::shared_ptr<ServerCall> call, uint64_t sequence, const TakeLimits& limits);
  // No item is wanted any more: destroys the coroutine at its next suspension, fails the waiting writes and
  // takes, and drops the items. Destructors of users run on the executor. Idempotent.
  void cancel(const absl::Status& reason) noexcept;
  // OK, or the reason of cancel().
  absl::Status cancelled() const;
  // The function that has returned the stream; empty before that.
  std::string callee() const;

  // ---- The producer.

  // The producer adds no more items. An error reaches the reader after the items. Later calls have no effect.
  void end(const absl::Status& status);

  void set_coroutine(std::coroutine_handle<> coroutine);
  // It is suspended at a co_yield.
  void suspended_at_yield();
  // It is suspended at a co_await. Returns the number for resume_await().
  uint64_t suspended_at_await();
  // The awaited future is complete.
  void resume_await(uint64_t await);
  // It has ended, and its frame has been destroyed.
  void coroutine_ended(const absl::Status& status);

 protected:
  explicit StreamSource(std::unique_ptr<StreamItems> items);

  enum class Write { kAdded, kWaits, kRefused };
  // Decides about an item that a writer adds now. kAdded: the subclass adds it. kWaits: the subclass keeps
  // it, and the promise completes when it was added. kRefused: `status` has the reason.
  Write begin_write_locked(uint64_t bytes, Promise<void>& promise, absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The coroutine adds an item. Returns false, and the subclass drops it, if the stream was cancelled.
  // `goes_on`: there is room for another item. `answers`: call post_answer() without the lock.
  bool begin_yield_locked(uint64_t bytes, bool& goes_on, bool& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers takes soon, on the executor, if that is possible. Call after an item was added, without the lock.
  void answer_soon();
  void post_answer();
  const std::shared_ptr<Executor>& executor_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return executor_;
  }
  mutable Mutex mutex_;
  const std::unique_ptr<StreamItems> items_ ABSL_PT_GUARDED_BY(mutex_);

 private:
  enum class State { kNone, kWaitsForRoom, kAwaits, kRunning };

  // Answers the takes that can be answered. Runs codecs of users: on the executor only.
  void answer_takes();
  // Answers one take. Returns whether it could be answered.
  bool answer_take();
  // Adds the items of waiting writes while there is room.
  void admit_writes();
  // Resumes a coroutine that waits for room, if there is room.
  void go_on();
  void post_run();
  // Runs the coroutine until it is suspended.
  void run();
  void cancel_all(const absl::Status& reason);
  // Runs a step without which the stream cannot go on. An exception cancels the stream, and returns false.
  bool run_or_cancel(absl::FunctionRef<void()> step) noexcept;
  // Destroys the frame of a coroutine that is suspended, if the stream was cancelled.
  void destroy_if_cancelled();
  bool is_handler_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The call that makes the stream, and its thread.
  const std::weak_ptr<const CallContext> maker_;
  const std::thread::id maker_thread_ = std::this_thread::get_id();
  // Fires the token of the CallContext in which the coroutine runs.
  const CancellationSource cancellation_;
  // The type of the items.
  const TypeOps* const batch_type_;
  StreamItems::Costs& costs_;

  StreamBuffer buffer_ ABSL_GUARDED_BY(mutex_);
  // The calls of takes that wait.
  std::map<uint64_t, std::shared_ptr<ServerCall>> takes_ ABSL_GUARDED_BY(mutex_);
  // The promises of writes that wait, in order.
  std::deque<Promise<void>> writes_ ABSL_GUARDED_BY(mutex_);
  bool returned_ ABSL_GUARDED_BY(mutex_) = false;
  // From returned() on.
  std::shared_ptr<Executor> executor_ ABSL_GUARDED_BY(mutex_);
  std::string callee_ ABSL_GUARDED_BY(mutex_);
  WorkerInfo reader_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<void> kept_ ABSL_GUARDED_BY(mutex_);
  // The ExecutionState in which the coroutine goes on.
  ExecutionState execution_state_ ABSL_GUARDED_BY(mutex_);
  std::coroutine_handle<> coroutine_ ABSL_GUARDED_BY(mutex_);
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNone;
  uint64_t await_ ABSL_GUARDED_BY(mutex_) = 0;
  bool run_posted_ ABSL_GUARDED_BY(mutex_) = false;
  bool answer_posted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  // The error with which the stream ends after its items.
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

// The value behind the RRef of a stream. Its destruction, when the reader has dropped the reference or died,
// or at the shutdown of this worker, cancels the stream.
class StreamOwner {
 public:
  explicit StreamOwner(std::shared_ptr<StreamSource> source) : source_(std::move(source)) {}
  ~StreamOwner() {
    source_->cancel(
        absl::CancelledError("the reader of the stream is gone, or the worker of the stream has shut down"));
  }
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;

  StreamSource& source() const { return *source_; }

 private:
  const std::shared_ptr<StreamSource> source_;
};

// Serves the method "Stream[T].take", for all T.
void serve_take(const std::shared_ptr<ServerCall>& call);

// The items of type T.
template <class T>
class TypedStreamItems final : public StreamItems {
 public:
  using Item = stream_internal::HeldItem<T>;

  void add(Item item) { items_.push_back(std::move(item)); }
  // Adds the item of a write that waits.
  void add_waiting(Item item) { waiting_.push_back(std::move(item)); }

  std::shared_ptr<void> take(std::size_t count, bool last, const std::string& callee,
                             std::vector<StreamFencePtr>& fences) override {
    auto batch = std::make_shared<stream_internal::Batch<T>>();
    batch->last = last;
    batch->callee = callee;
    batch->items.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (StreamFencePtr fence = items_.front().take_fence()) fences.push_back(std::move(fence));
      batch->items.push_back(std::move(items_.front()));
      items_.pop_front();
    }
    return batch;
  }
  uint64_t admit_write() override {
    items_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    return items_.back().bytes();
  }
  std::shared_ptr<void> drop() override {
    auto dropped = std::make_shared<std::pair<std::deque<Item>, std::deque<Item>>>();
    dropped->first.swap(items_);
    dropped->second.swap(waiting_);
    return dropped;
  }
  const TypeOps* batch_type() const override { return stream_internal::batch_ops<T>(); }
  Costs& costs() const override {
    static Costs costs;
    return costs;
  }

 private:
  std::deque<Item> items_;
  std::deque<Item> waiting_;
};

// A stream of items of type T.
template <class T>
class TypedStreamSource final : public StreamSource {
 public:
  TypedStreamSource() : StreamSource(std::make_unique<TypedStreamItems<T>>()) {}

  // The coroutine yields an item. Returns whether it may go on, without suspension.
  bool yield(T&& value) {
    Item item(std::move(value));
    bool goes_on = false;
    bool answers = false;
    {
      MutexLock lock(mutex_);
      if (!begin_yield_locked(item.bytes(), goes_on, answers)) return false;
      items_locked().add(std::move(item));
    }
    if (answers) post_answer();
    return goes_on;
  }

  // A writer adds an item. The future completes when the item was added: at once if there is room.
  Future<void> write(T&& value) {
    Item item(std::move(value));
    absl::Status refused;
    {
      MutexLock lock(mutex_);
      Promise<void> promise(executor_locked());
      const Write decision = begin_write_locked(item.bytes(), promise, refused);
      if (decision == Write::kWaits) {
        items_locked().add_waiting(std::move(item));
        return promise.future();
      }
      if (decision == Write::kAdded) items_locked().add(std::move(item));
    }
    if (refused.ok()) answer_soon();
    return Future<void>(refused);
  }

 private:
  using Item = typename TypedStreamItems<T>::Item;
  TypedStreamItems<T>& items_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<TypedStreamItems<T>&>(*items_);
  }
};

}  // namespace gradwire::rpc
