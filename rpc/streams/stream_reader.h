#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/codec.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/streams/item_size.h"
#include "gradwire/rpc/streams/read_window.h"
#include "gradwire/rpc/streams/stream_batch.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Agent;

// The reader's end of one stream, whatever the type of the items: it keeps takes in flight (ReadWindow says
// how many), puts their answers in order, and completes the wait for the next item. Thread-safe, but only one
// thread reads at a time.
//
// States: open; ended, with OK or an error, after the last item; closed, by close() or a timeout. When it has
// ended or is closed it holds no reference to the stream.
class StreamReader : public std::enable_shared_from_this<StreamReader> {
 public:
  struct Options {
    uint64_t window_items = 0;
    uint64_t window_bytes = 0;
    // Bounds each wait for an item; nullopt: the agent's rpc_timeout.
    std::optional<absl::Duration> item_timeout;
    // Bounds the time from the creation of the reader to the end of the stream.
    absl::Duration total_timeout = absl::InfiniteDuration();
  };
  // The method "Stream[T].take".
  struct Take {
    std::string name;
    uint64_t signature_hash = 0;
  };
  // `handle`: the reference to the stream. `callee`: for messages.
  StreamReader(const std::shared_ptr<Agent>& agent, std::shared_ptr<RRefHandle> handle, Take take,
               std::string callee, const Options& options);
  virtual ~StreamReader() = default;

  // Sends the takes for which the window has room. May block as other calls do. Call it before each wait.
  void send_takes();
  // Cancels the stream: no item is wanted any more. Waits fail with `reason`. Idempotent.
  void close(const absl::Status& reason);

 protected:
  // The items of one answer, in the order of the stream.
  struct Arrived {
    virtual ~Arrived() = default;
    std::size_t items = 0;
    std::size_t next = 0;
    uint64_t bytes = 0;
    bool last = false;
    StreamFencePtr fence;
  };
  // An item: number `index` of `batch`. Without a batch: the end of the stream, or its error.
  struct Next {
    std::shared_ptr<Arrived> batch;
    std::size_t index = 0;
    absl::Status status;
  };
  // Completes a wait.
  using Waiter = absl::AnyInvocable<void(Next)>;

  // Decodes an answer, which it may keep. Called without a lock, on the thread that received the answer.
  virtual absl::StatusOr<std::shared_ptr<Arrived>> decode(IncomingPayload& in) const = 0;

  // Returns the next item or the end, if it is there. `refill`: whether the window has room for takes.
  std::optional<Next> try_next(bool& refill);
  // Calls `waiter` with the next item or the end, at once or later on the thread that receives it.
  // FailedPrecondition, if another wait is in progress.
  void wait(Waiter waiter);
  // The executor of the agent; nullptr when the agent is gone.
  std::shared_ptr<Executor> executor() const;

 private:
  void answered(uint64_t sequence, absl::StatusOr<IncomingPayload> in);
  absl::StatusOr<std::shared_ptr<Arrived>> decode_answer(absl::StatusOr<IncomingPayload> in) const;
  // Takes the next item out, if there is one, or the end.
  std::optional<Next> next_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As close(). With a number, only if the wait with this number is in progress.
  void close_wait(const absl::Status& reason, std::optional<uint64_t> number);
  // The time for the wait with this number is over.
  void expire(uint64_t number);
  absl::Status with_place(const absl::Status& status) const;

  const std::weak_ptr<Agent> agent_;
  const Take take_;
  const std::string callee_;
  const Worker owner_;
  const Options options_;
  // When the stream ends in any case, on Clock::system(): after total_timeout, or with the call that the
  // creating thread serves.
  const absl::Time deadline_;

  Mutex mutex_;
  // nullptr when the stream has ended or is closed.
  std::shared_ptr<RRefHandle> handle_ ABSL_GUARDED_BY(mutex_);
  // Whether close() was called. The end of the stream alone only ends `handle_`.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  ReadWindow window_ ABSL_GUARDED_BY(mutex_);
  // The ids of the calls that are in flight; 0 while the call is being sent.
  std::map<uint64_t, uint64_t> takes_ ABSL_GUARDED_BY(mutex_);
  // Answers that arrived before earlier ones.
  std::map<uint64_t, absl::StatusOr<std::shared_ptr<Arrived>>> early_ ABSL_GUARDED_BY(mutex_);
  // Sequence number of the next answer.
  uint64_t expected_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Arrived>> ready_ ABSL_GUARDED_BY(mutex_);
  // How the stream ended or was closed.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  Waiter waiter_ ABSL_GUARDED_BY(mutex_);
  uint64_t wait_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t timer_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The reader of a stream of items of type T.
template <class T>
class TypedStreamReader final : public StreamReader {
 public:
  using StreamReader::StreamReader;

  // Waits for the next item; nullopt after the last one.
  absl::StatusOr<std::optional<T>> next() {
    bool refill = true;
    std::optional<Next> there = try_next(refill);
    if (refill) send_takes();
    if (there) {
      if (there->batch == nullptr) return end_of(*there);
      if (there->batch->fence != nullptr) GRADWIRE_RETURN_IF_ERROR(there->batch->fence->wait());
      return std::optional<T>(item_of(*there));
    }
    return future_internal::take_result(wait_async());
  }
  // As next(), without waiting.
  Future<std::optional<T>> next_async() {
    send_takes();
    return wait_async();
  }

 private:
  struct Items final : Arrived {
    std::vector<T> values;
  };

  Future<std::optional<T>> wait_async() {
    Promise<std::optional<T>> promise(executor());
    promise.on_cancel([weak = weak_from_this()] {
      if (const std::shared_ptr<StreamReader> reader = weak.lock())
        reader->close(absl::CancelledError("the wait for an item was cancelled"));
    });
    wait([promise](Next next) {
      if (next.batch == nullptr) {
        promise.set_result(end_of(next));
      } else {
        StreamFencePtr fence = next.batch->fence;
        promise.set_result(absl::StatusOr<std::optional<T>>(item_of(next)), std::move(fence));
      }
    });
    return promise.future();
  }

  static T item_of(Next& next) { return std::move(static_cast<Items&>(*next.batch).values[next.index]); }
  static absl::StatusOr<std::optional<T>> end_of(const Next& next) {
    if (!next.status.ok()) return next.status;
    return std::optional<T>();
  }

  absl::StatusOr<std::shared_ptr<Arrived>> decode(IncomingPayload& in) const override {
    if (in.payload->values_size() != 1)
      return absl::InvalidArgumentError("malformed answer: expected exactly one value");
    Decoder decoder = in.decoder();
    GRADWIRE_ASSIGN_OR_RETURN(stream_internal::Batch<T> batch,
                              stream_internal::decode_batch<T>(in.payload->values(0), decoder));
    auto arrived = std::make_shared<Items>();
    arrived->values = std::move(batch.items);
    arrived->items = arrived->values.size();
    arrived->last = batch.last;
    for (const T& item : arrived->values) arrived->bytes += stream_internal::item_bytes<T>(item);
    return arrived;
  }
};

}  // namespace gradwire::rpc
