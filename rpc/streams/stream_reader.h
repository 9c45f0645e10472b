#pragma once

#include <algorithm>
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
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/codec.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/calls/call_steps.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/streams/stream_batch.h"
#include "gradwire/rpc/streams/stream_buffer.h"

namespace gradwire::rpc {

class Agent;

// Decides, at the reader of a stream, when the next take is sent and what it asks for. A pure state machine,
// not thread-safe.
//
// The window bounds the items that the reader has not read, wherever they are: the items that outstanding
// takes ask for, and those that have arrived. It is divided into several takes, so that the producer works
// while an answer travels.
class ReadWindow {
 public:
  // Number of takes into which a window is divided. With 4 KiB items over tcp, 16 delivered 1.7 times as much
  // as 4 did: an answer of a quarter of the default window is copied from memory, that of a sixteenth from
  // the cache, and fewer answers on their way leave gaps. With 32 the cost of each take outweighs that.
  static constexpr uint64_t kMostTakes = 16;
  // As many takes are sent before the first answer, because the size of the items is not known yet.
  static constexpr uint64_t kFirstTakes = 4;

  // The window in items and in bytes; 0 counts as 1.
  ReadWindow(uint64_t items, uint64_t bytes)
      : items_(std::max<uint64_t>(items, 1)),
        bytes_(std::max<uint64_t>(bytes, 1)),
        per_take_{part_of(items_, StreamBuffer::kMostItems), part_of(bytes_, StreamBuffer::kMostBytes)} {}

  struct Take {
    uint64_t sequence = 0;
    TakeLimits limits;
  };
  // Whether the window has room for another take.
  bool has_room() const {
    if (outstanding_ >= (begun_ ? kMostTakes : kFirstTakes)) return false;
    // When nothing is on its way and nothing is unread, a take is always sent: the last item may have been
    // larger than the window.
    if (outstanding_ == 0 && unread_items_ == 0) return true;
    return unread_items_ + (outstanding_ + 1) * per_take_.items <= items_ &&
           unread_bytes_ + (outstanding_ + 1) * expected_bytes_ <= bytes_;
  }
  // Returns the next take if the window has room for it. The caller must send it.
  std::optional<Take> next_take() {
    if (!has_room()) return std::nullopt;
    ++outstanding_;
    return Take{next_++, per_take_};
  }

  // The answer to a take arrived, with this many items and bytes.
  void arrived(uint64_t items, uint64_t bytes) {
    --outstanding_;
    unread_items_ += items;
    unread_bytes_ += bytes;
    begun_ = true;
    // An item that is larger than the part of a take travels alone.
    if (items > 0) expected_bytes_ = std::max(per_take_.bytes, bytes / items);
  }
  // The program has read one item. The sum of `bytes` over all items is what arrived() got.
  void read(uint64_t bytes) {
    --unread_items_;
    unread_bytes_ -= bytes;
  }

 private:
  // A part of a window that fits kMostTakes times, if the window is large enough for that.
  static uint64_t part_of(uint64_t window, uint64_t most) {
    return std::clamp<uint64_t>(window / kMostTakes, 1, most);
  }

  const uint64_t items_;
  const uint64_t bytes_;
  const TakeLimits per_take_;
  // The bytes that an outstanding take will bring, by the last answer.
  uint64_t expected_bytes_ = per_take_.bytes;
  bool begun_ = false;
  uint64_t next_ = 0;
  uint64_t outstanding_ = 0;
  uint64_t unread_items_ = 0;
  uint64_t unread_bytes_ = 0;
};

// The reader's end of one stream, whatever the type of the items: it keeps takes in flight (ReadWindow says
// how many), puts their answers in order, and completes the wait for the next item. Thread-safe, but only one
// thread reads at a time.
//
// States: open; ended, with OK or an error, after the last item; closed, by close(), a timeout or an item
// that cannot be decoded. When it has ended or is closed it holds no reference to the stream.
//
// Items stay in the message until they are read: to decode, move or destroy one may run code of a user, and
// answers arrive on threads that must not run it (base/duty.h).
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
  virtual ~StreamReader();

  // Sends the takes for which the window has room. May block as other calls do. Call it before each wait.
  void send_takes() noexcept;
  // Cancels the stream: no item is wanted any more. Waits fail with `reason`. Idempotent.
  void close(const absl::Status& reason);

 protected:
  // One answer.
  struct Arrived {
    IncomingPayload in;
    // The items, in `in`, in the order of the stream (stream_internal::item_at).
    const proto::Value* values = nullptr;
    std::size_t items = 0;
    bool last = false;
    // Guarded by the lock of the reader: the next item that was not read, and the bytes of all such items.
    std::size_t next = 0;
    uint64_t bytes = 0;
  };
  // An item: number `index` of `batch`. Without a batch: the end of the stream, or its error.
  struct Next {
    std::shared_ptr<Arrived> batch;
    std::size_t index = 0;
    absl::Status status;
  };
  // Completes a wait. Called without a lock, perhaps on a thread on duty.
  using Waiter = absl::AnyInvocable<void(Next)>;

  // Returns the next item or the end, if it is there. `refill`: whether the window has room for takes.
  std::optional<Next> try_next(bool& refill);
  // Calls `waiter` with the next item or the end, at once or later on the thread that receives it.
  // FailedPrecondition, if another wait is in progress.
  void wait(Waiter waiter);
  // An item cannot be decoded: closes the stream. Returns the error for the reader, which later reads get
  // too.
  absl::Status item_failed(const absl::Status& status);
  const std::weak_ptr<Agent>& agent() const { return agent_; }
  // The executor of the agent; nullptr when the agent is gone.
  std::shared_ptr<Executor> executor() const;

 private:
  enum class Close {
    // After the end nothing changes, unless items are dropped.
    kIfOpen,
    // The status replaces also the end.
    kAlways,
  };

  void send_each_take();
  // Runs a step without which readers would wait, or takes would stay open. An exception closes the stream.
  void run_or_close(absl::FunctionRef<void()> step) noexcept;
  // A take was answered.
  void answered(uint64_t sequence, absl::StatusOr<IncomingPayload> in) noexcept;
  void add_answer(uint64_t sequence, absl::StatusOr<IncomingPayload> in);
  absl::StatusOr<std::shared_ptr<Arrived>> open_answer(absl::StatusOr<IncomingPayload> in) const;
  // Takes the next item out, if there is one, or the end.
  std::optional<Next> next_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As close(), with the whole error. With a number, only if the wait with this number is in progress.
  void close_with(const absl::Status& status, Close how, std::optional<uint64_t> number = std::nullopt);
  // Has the stream closed at the deadline, also if nobody waits then.
  void start_deadline();
  // The time for the wait with this number is over; without a number, that for the whole stream.
  void expire(std::optional<uint64_t> number);
  absl::Status with_place(const absl::Status& status) const;

  const std::weak_ptr<Agent> agent_;
  const Take take_;
  // The function that has made the stream.
  const std::shared_ptr<const std::string> callee_;
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
  bool deadline_started_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t deadline_timer_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The reader of a stream of items of type T.
template <class T>
class TypedStreamReader final : public StreamReader {
 public:
  using StreamReader::StreamReader;

  using Result = absl::StatusOr<std::optional<T>>;

  // Waits for the next item; nullopt after the last one.
  Result next() {
    bool refill = true;
    std::optional<Next> there = try_next(refill);
    if (refill) send_takes();
    if (there) {
      if (there->batch == nullptr) return end_of(*there);
      if (const StreamFencePtr& fence = there->batch->in.fence) GRADWIRE_RETURN_IF_ERROR(fence->wait());
      return item_of(*there);
    }
    return future_internal::take_result(wait_async());
  }
  // As next(), without waiting.
  Future<std::optional<T>> next_async() {
    send_takes();
    return wait_async();
  }

 private:
  // An item that arrived while somebody waited for it.
  class WaitedItem final : public future_internal::LazyResult<std::optional<T>> {
   public:
    WaitedItem(std::shared_ptr<TypedStreamReader> reader, Next next)
        : reader_(std::move(reader)), next_(std::move(next)) {}

    // A destructor may make calls.
    void destroy() override {
      call_internal::destroy_as(reader_->agent(),
                                [this] { future_internal::LazyResult<std::optional<T>>::destroy(); });
    }

   private:
    void make(std::optional<Result>& result) override {
      // The message ends here, if it was its last item.
      const Next next = std::exchange(next_, {});
      future_internal::store(result, reader_->item_of(next));
    }

    const std::shared_ptr<TypedStreamReader> reader_;
    Next next_;
  };

  Future<std::optional<T>> wait_async() {
    Promise<std::optional<T>> promise(executor());
    promise.on_cancel([weak = weak_from_this()] {
      if (const std::shared_ptr<StreamReader> reader = weak.lock())
        reader->close(absl::CancelledError("the wait for an item was cancelled"));
    });
    wait([promise, weak = weak_from_this()](Next next) {
      const auto reader = std::static_pointer_cast<TypedStreamReader>(weak.lock());
      if (next.batch == nullptr || reader == nullptr) {
        promise.set_result(end_of(next));
      } else {
        StreamFencePtr fence = next.batch->in.fence;
        promise.set_lazy(std::make_unique<WaitedItem>(reader, std::move(next)), std::move(fence));
      }
    });
    return promise.future();
  }

  // Decodes an item.
  Result item_of(const Next& next) {
    try {
      proto::Value unpacked;
      Decoder decoder = next.batch->in.decoder();
      absl::StatusOr<T> item =
          decode_value<T>(stream_internal::item_at(*next.batch->values, next.index, unpacked), decoder);
      if (item.ok()) return Result(absl::in_place, *std::move(item));
      return item_failed(item.status());
    } catch (...) {
      // The Codec or a move of the user's type has thrown.
      return item_failed(status_from_exception(std::current_exception()));
    }
  }
  static Result end_of(const Next& next) {
    if (!next.status.ok()) return next.status;
    return std::optional<T>();
  }
};

}  // namespace gradwire::rpc
