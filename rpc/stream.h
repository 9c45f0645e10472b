#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/streams/serve_stream.h"      // IWYU pragma: export
#include "gradwire/rpc/streams/stream_coroutine.h"  // IWYU pragma: export
#include "gradwire/rpc/streams/stream_reader.h"
#include "gradwire/rpc/streams/stream_source.h"

// Streams of results: a registered function that returns Stream<T> produces items one after the other, and
// its caller reads them while the function goes on. docs/streams.md describes the use.
//
//   Stream<std::string> generate(std::string prompt, int64_t n) {
//     for (int64_t i = 0; i < n; ++i) co_yield co_await next_token(prompt, i);
//   }
//   GRADWIRE_RPC(generate)
//
//   RemoteStream<std::string> tokens = rpc_stream<&generate>("worker1", "Once upon", 100);
//   while (std::optional<std::string> token = tokens.next()) print(*token);
namespace gradwire::rpc {

// The result of a registered function that produces a stream of items of type T. T needs a Codec. A coroutine
// returns it, or make_stream() makes it together with a StreamWriter.
//
// A coroutine starts when the reader asks for the first item. It is suspended at a co_yield while the
// reader's window is full, and at each co_await of a Future. When the stream is cancelled, its frame is
// destroyed at the next suspension. An exception ends the stream with an error, after the items before it.
// Inside, the CallContext is that of the stream: its deadline is infinite, and cancelled() says whether the
// reader is gone.
//
// Movable. A Stream that is dropped without being returned cancels its producer.
template <class T>
class [[nodiscard]] Stream {
 public:
  // The type of the items.
  using value_type = T;

  // An empty stream. A function must not return it.
  Stream() = default;
  // For make_stream() and coroutines.
  explicit Stream(std::shared_ptr<TypedStreamSource<T>> source) : source_(std::move(source)) {}
  ~Stream() {
    if (source_ != nullptr) source_->cancel(absl::CancelledError("the stream was dropped before its return"));
  }
  Stream(Stream&& other) noexcept = default;
  // The other stream gets what this one was.
  Stream& operator=(Stream&& other) noexcept {
    std::swap(source_, other.source_);
    return *this;
  }

  // For the code that serves the call: gives the producer's end away.
  std::shared_ptr<StreamSource> release() { return std::exchange(source_, nullptr); }

 private:
  std::shared_ptr<TypedStreamSource<T>> source_;
};

// Writes the items of a stream that make_stream() has made, from any thread. Copyable and thread-safe. If all
// copies are destroyed without finish(), the stream ends with Aborted.
template <class T>
class StreamWriter {
 public:
  // For make_stream().
  explicit StreamWriter(std::shared_ptr<TypedStreamSource<T>> source)
      : obligation_(std::make_shared<Obligation>(std::move(source))) {}

  // Adds an item. Waits while the reader's window is full. Throws Error: Cancelled when the reader is gone;
  // Unavailable, or Cancelled, when this worker shuts down; FailedPrecondition after finish(). Before the
  // handler has returned the stream nobody reads it: then the handler's own writes do not wait, and fail with
  // ResourceExhausted after 1,024 items or 4 MiB. Other threads wait.
  void write(T item) const { write_async(std::move(item)).wait(); }
  // As write(), without waiting: the future completes when the item is in the window, and reports errors. The
  // next item should wait for it.
  Future<void> write_async(T item) const { return obligation_->source->write(std::move(item)); }
  // Ends the stream after the items written so far. With an error the reader gets it after them. Later calls
  // have no effect.
  void finish(const absl::Status& status = absl::OkStatus()) const { obligation_->source->end(status); }
  // Whether the reader is gone, so that no item is needed.
  bool cancelled() const { return !obligation_->source->cancelled().ok(); }

 private:
  struct Obligation {
    explicit Obligation(std::shared_ptr<TypedStreamSource<T>> s) : source(std::move(s)) {}
    ~Obligation() {
      source->end(absl::AbortedError("the writer of the stream was dropped without finish()"));
    }
    const std::shared_ptr<TypedStreamSource<T>> source;
  };
  std::shared_ptr<Obligation> obligation_;
};

// Both ends of a stream inside the function that returns it.
template <class T>
struct StreamParts {
  // The result of the function.
  Stream<T> stream;
  // Where its items go.
  StreamWriter<T> writer;
};

// Makes a stream whose items are written by a StreamWriter:
//   auto [stream, writer] = make_stream<at::Tensor>();
//   ... give the writer to a thread ...
//   return std::move(stream);
template <class T>
StreamParts<T> make_stream() {
  auto source = std::make_shared<TypedStreamSource<T>>();
  return {Stream<T>(source), StreamWriter<T>(source)};
}

// Settings of one stream, at its reader.
struct StreamOptions {
  // How far the producer may be ahead of the reader: maximum number of items that were produced and not read,
  // and of their bytes. Each has the other as a second bound. An item that is larger travels alone.
  int64_t window_items = 1'024;
  // The bytes of tensors, strings and containers are known. An item of another type counts as 64 KiB, unless
  // its Codec has a function byte_size(value).
  int64_t window_bytes = int64_t{4} << 20;
  // Bounds the whole stream, from rpc_stream until its last item has been read: then reading fails, also
  // where items have arrived. A stream that a handler reads also ends at the deadline of the call that the
  // handler serves. InfiniteDuration(): no limit. The timeout of the destination, or of the reference, bounds
  // each wait for an item.
  absl::Duration total_timeout = absl::InfiniteDuration();
};

// The worker that produces a stream, with the settings of the stream:
//   rpc_stream<&generate>(StreamDestination("worker1", {.window_items = 16}), "Once upon", 100)
class StreamDestination {
 public:
  // As Destination: a name, an id, a WorkerInfo or a Destination. Its timeout bounds each wait for an item.
  template <class D>
  requires std::is_convertible_v<D, Destination> StreamDestination(D&& to, StreamOptions options = {})
      : to_(std::forward<D>(to)), options_(options) {}

  // The worker.
  const Destination& to() const { return to_; }
  // The settings of the stream.
  const StreamOptions& options() const { return options_; }

 private:
  Destination to_;
  StreamOptions options_;
};

// The object whose method produces a stream, with the settings of the stream:
//   rpc_stream<&Model::generate>(StreamObject(model, {.window_items = 16}), "Once upon", 100)
template <class C>
class StreamObject {
 public:
  // The timeout of the reference (RRef::with_timeout) bounds each wait for an item.
  explicit StreamObject(RRef<C> object, StreamOptions options = {})
      : object_(std::move(object)), options_(options) {}

  // The object.
  const RRef<C>& object() const { return object_; }
  // The settings of the stream.
  const StreamOptions& options() const { return options_; }

 private:
  RRef<C> object_;
  StreamOptions options_;
};

// A stream that another worker (or this one) produces, at its reader. Movable, not copyable. One thread reads
// at a time; cancel() may be called from any thread. Destruction cancels the stream, so that the producer
// stops soon.
//
// Errors are thrown as Error with the producer's worker, after all items that were produced before:
//   the producer's own         as of rpc_sync: Unknown for an exception; an Error keeps its code
//   DeadlineExceeded           no item within the timeout of the destination or reference; no end within
//                              total_timeout
//   Unavailable, Aborted       the producer's worker died, shut down or was started again, or the connection
//                              broke
//   Cancelled                  cancel() was called
//   FailedPrecondition         the agent was shut down; another wait is in progress; the function was called
//                              in an autograd context
// After the end or an error each call returns the same again.
template <class T>
class [[nodiscard]] RemoteStream {
 public:
  // The type of the items.
  using value_type = T;

  // No stream. Only assignment and destruction are allowed.
  RemoteStream() = default;
  // For rpc_stream().
  explicit RemoteStream(std::shared_ptr<TypedStreamReader<T>> reader) : reader_(std::move(reader)) {}
  ~RemoteStream() { cancel(); }
  RemoteStream(RemoteStream&& other) noexcept = default;
  // Cancels the stream that this one was.
  RemoteStream& operator=(RemoteStream&& other) noexcept {
    if (this != &other) {
      cancel();
      reader_ = std::move(other.reader_);
    }
    return *this;
  }

  // Waits for the next item and returns it; nullopt after the last one. Throws Error.
  std::optional<T> next() { return value_or_throw(reader_->next()); }
  // As next(), without waiting. The future reports errors. Read one item at a time: a second wait fails while
  // one is in progress. Cancelling the future cancels the stream.
  Future<std::optional<T>> next_async() { return reader_->next_async(); }

  // Cancels the stream: the producer stops soon, and reading fails with Cancelled. Has no effect after the
  // end.
  void cancel() {
    if (reader_ != nullptr) reader_->close(absl::CancelledError("cancelled by the reader"));
  }

  // Reads the stream in a range-for loop. Each step is a next().
  class Iterator {
   public:
    // For std::input_iterator.
    using iterator_concept = std::input_iterator_tag;
    // The type of the items.
    using value_type = T;
    // Required of iterators; has no meaning here.
    using difference_type = std::ptrdiff_t;

    // The end.
    Iterator() = default;
    // Reads the first item.
    explicit Iterator(RemoteStream* stream) : stream_(stream), item_(stream->next()) {}
    // The item, which the loop may change or move from.
    T& operator*() const { return *item_; }
    // Reads the next item.
    Iterator& operator++() {
      item_ = stream_->next();
      return *this;
    }
    // As above.
    void operator++(int) { ++*this; }
    // Whether the stream has ended.
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) { return !iterator.item_; }

   private:
    RemoteStream* stream_ = nullptr;
    mutable std::optional<T> item_;
  };
  // Reads the first item that has not been read.
  Iterator begin() { return Iterator(this); }
  // The end of the stream.
  std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<TypedStreamReader<T>> reader_;
};

namespace stream_internal {

// Sends the call, and the first takes behind it. `C`: the class of the object of a method, or void.
template <auto F, class C, class... A>
auto start_stream(const std::shared_ptr<Agent>& agent, const StreamDestination& to,
                  const std::shared_ptr<RRefHandle>& object, A&&... arguments) {
  using Result = typename FunctionTraits<decltype(F)>::Result;
  static_assert(
      kIsStream<Result>,
      "rpc_stream is for functions that return a Stream: call this function with rpc_sync, rpc_async "
      "or remote");
  if constexpr (kIsStream<Result>) {
    using T = typename Result::value_type;
    StreamReader::Options options;
    options.window_items = static_cast<uint64_t>(std::max<int64_t>(to.options().window_items, 1));
    options.window_bytes = static_cast<uint64_t>(std::max<int64_t>(to.options().window_bytes, 1));
    options.item_timeout = to.to().timeout();
    options.total_timeout = to.options().total_timeout;
    call_internal::FunctionCall<F, C> call(agent->caller(), to.to(), std::forward<A>(arguments)...);
    auto reader = std::make_shared<TypedStreamReader<T>>(
        agent, call_internal::send_remote(agent, call, stream_type(codec_type_name<T>()), object),
        StreamReader::Take{take_callee<T>->name, take_callee<T>->signature_hash},
        call_internal::name_of<F, C>(), options);
    reader->send_takes();
    return RemoteStream<T>(std::move(reader));
  }
}

}  // namespace stream_internal

template <auto F, class D, class... A>
auto Agent::rpc_stream(D&& to, A&&... arguments) {
  return stream_internal::start_stream<F, void>(shared_from_this(), StreamDestination(std::forward<D>(to)),
                                                nullptr, std::forward<A>(arguments)...);
}

// Calls the registered function F, which returns Stream<T>, on the worker `to`, and returns the stream at
// once, as a RemoteStream<T>. Arguments are converted as in a direct call. Throws an error that is found
// before the call is sent (NotFound, InvalidArgument, FailedPrecondition as rpc_sync); later errors come with
// the items.
template <auto F, class... A>
auto rpc_stream(const StreamDestination& to, A&&... arguments) {
  return stream_internal::start_stream<F, void>(Agent::current(), to, nullptr, std::forward<A>(arguments)...);
}
// As rpc_stream, for a method of an object. The object lives until the stream ends.
template <auto F, class C, class... A>
auto rpc_stream(const StreamObject<C>& to, A&&... arguments) {
  const std::shared_ptr<RRefHandle>& handle = to.object().handle();
  return stream_internal::start_stream<F, C>(rref_internal::agent_of(handle.get()),
                                             StreamDestination(to.object().destination(), to.options()),
                                             handle, std::forward<A>(arguments)...);
}
// The same with the default settings. The timeout of the reference bounds each wait for an item.
template <auto F, class C, class... A>
auto rpc_stream(const RRef<C>& object, A&&... arguments) {
  return rpc_stream<F>(StreamObject<C>(object), std::forward<A>(arguments)...);
}

}  // namespace gradwire::rpc
