#include "gradwire/rpc/streams/stream_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/dtype.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call_steps.h"

namespace gradwire::rpc {

namespace {

// The bytes of a tensor that its description does not contain.
uint64_t bytes_beside(const proto::Tensor& tensor) {
  double bytes = 0;
  if (tensor.buffer() != 0 || tensor.has_on_device()) {
    const int64_t element = element_bytes(tensor.dtype());
    bytes = element == 0 ? 8 : static_cast<double>(element);
    for (const int64_t size : tensor.sizes()) bytes *= static_cast<double>(size);
  }
  // The description comes from another worker.
  constexpr double kMost = 1e15;
  uint64_t all = static_cast<uint64_t>(std::clamp(bytes, 0.0, kMost));
  for (const proto::Tensor& part : tensor.parts()) all += bytes_beside(part);
  return all;
}

// The bytes of an answer, roughly those that it takes here.
uint64_t bytes_of(const proto::Payload& payload) {
  uint64_t bytes = payload.ByteSizeLong();
  for (const proto::Tensor& tensor : payload.tensors()) bytes += bytes_beside(tensor);
  return bytes;
}

}  // namespace

StreamReader::StreamReader(const std::shared_ptr<Agent>& agent, std::shared_ptr<RRefHandle> handle, Take take,
                           std::string callee, const Options& options)
    : agent_(agent),
      take_(std::move(take)),
      callee_(std::make_shared<const std::string>(std::move(callee))),
      owner_(handle->owner()),
      options_(options),
      deadline_(agent->services().call_deadline(options.total_timeout)),
      handle_(std::move(handle)),
      window_(options.window_items, options.window_bytes) {}

StreamReader::~StreamReader() {
  if (deadline_timer_ == 0) return;
  if (const std::shared_ptr<Agent> agent = agent_.lock()) agent->services().timers().cancel(deadline_timer_);
}

std::shared_ptr<Executor> StreamReader::executor() const {
  const std::shared_ptr<Agent> agent = agent_.lock();
  return agent == nullptr ? nullptr : agent->executor();
}

// The takes run in a clean ExecutionState. So they do not end with a call that this thread serves at the
// moment, and do not belong to an autograd context. They have no deadline: a take waits as long as the
// producer has nothing to send, also while nobody waits for an item. The death of the owner ends it.
void StreamReader::send_takes() noexcept {
  run_or_close([this] { send_each_take(); });
}

void StreamReader::send_each_take() {
  start_deadline();
  const ScopedExecutionState clean;
  while (true) {
    std::shared_ptr<RRefHandle> handle;
    std::optional<ReadWindow::Take> take;
    {
      MutexLock lock(mutex_);
      if (handle_ == nullptr) return;
      take = window_.next_take();
      if (!take) return;
      handle = handle_;
      takes_[take->sequence] = 0;
    }
    const std::shared_ptr<Agent> agent = agent_.lock();
    if (agent == nullptr) {
      close(absl::FailedPreconditionError("the agent of the stream has been shut down"));
      return;
    }
    OutgoingCall call(agent->caller(),
                      Destination::incarnation_of(owner_).with_timeout(absl::InfiniteDuration()), take_.name);
    call.set_stream_of(callee_);
    call.request().set_method(take_.name);
    call.request().set_signature(take_.signature_hash);
    call.add_argument<uint64_t>(take->sequence);
    call.add_argument<uint64_t>(take->limits.items);
    call.add_argument<uint64_t>(take->limits.bytes);
    const uint64_t id = call_internal::send_on(
        agent, call, *handle,
        [weak = weak_from_this(), handle, sequence = take->sequence](absl::StatusOr<IncomingPayload> in) {
          if (const std::shared_ptr<StreamReader> reader = weak.lock())
            reader->answered(sequence, std::move(in));
        });
    bool closed = false;
    {
      MutexLock lock(mutex_);
      closed = closed_;
      // It may have been answered already.
      auto sent = takes_.find(take->sequence);
      if (sent != takes_.end()) sent->second = id;
    }
    // close() did not know the id. After the end of the stream the take is not cancelled: the producer
    // answers takes in their order, so those behind it would not be answered.
    if (closed) call_internal::cancel(*agent, id, absl::CancelledError("the stream was cancelled"));
  }
}

void StreamReader::start_deadline() {
  const std::shared_ptr<Agent> agent = agent_.lock();
  if (agent == nullptr) return;
  MutexLock lock(mutex_);
  if (deadline_started_ || closed_) return;
  deadline_timer_ = agent->services().timers().schedule(deadline_, [weak = weak_from_this()] {
    if (const std::shared_ptr<StreamReader> reader = weak.lock()) reader->expire(std::nullopt);
  });
  // After it: if scheduling throws, the next call tries again.
  deadline_started_ = true;
}

void StreamReader::close(const absl::Status& reason) { close_with(with_place(reason), Close::kIfOpen); }

absl::Status StreamReader::item_failed(const absl::Status& status) {
  const absl::Status failed = with_place(with_context(status, "decoding an item"));
  close_with(failed, Close::kAlways);
  return failed;
}

void StreamReader::close_with(const absl::Status& status, Close how, std::optional<uint64_t> number) {
  std::shared_ptr<RRefHandle> handle;
  std::map<uint64_t, uint64_t> takes;
  std::map<uint64_t, absl::StatusOr<std::shared_ptr<Arrived>>> early;
  std::deque<std::shared_ptr<Arrived>> ready;
  Waiter waiter;
  uint64_t timer = 0;
  uint64_t deadline_timer = 0;
  {
    MutexLock lock(mutex_);
    if (number && (!waiter_ || *number != wait_)) return;
    closed_ = true;
    handle.swap(handle_);
    takes.swap(takes_);
    early.swap(early_);
    ready.swap(ready_);
    waiter = std::exchange(waiter_, nullptr);
    timer = std::exchange(timer_, 0);
    deadline_timer = std::exchange(deadline_timer_, 0);
    if (how == Close::kAlways || !end_ || !ready.empty()) end_ = status;
  }
  if (const std::shared_ptr<Agent> agent = agent_.lock()) {
    if (timer != 0) agent->services().timers().cancel(timer);
    if (deadline_timer != 0) agent->services().timers().cancel(deadline_timer);
    // The first Cancel that arrives cancels the stream. After that the reference goes.
    for (const auto& [sequence, id] : takes) {
      if (id != 0) call_internal::cancel(*agent, id, status);
    }
  }
  if (waiter) waiter(Next{nullptr, 0, status});
}

absl::StatusOr<std::shared_ptr<StreamReader::Arrived>> StreamReader::open_answer(
    absl::StatusOr<IncomingPayload> in) const {
  if (!in.ok()) return in.status();
  auto arrived = std::make_shared<Arrived>();
  arrived->in = *std::move(in);
  const proto::Payload& payload = *arrived->in.payload;
  const proto::ValueList* parts = payload.values_size() == 1 ? elements_of(payload.values(0)) : nullptr;
  std::optional<std::size_t> items;
  if (parts != nullptr && parts->values_size() == 2 && parts->values(1).has_boolean())
    items = stream_internal::items_in(parts->values(0));
  if (!items)
    return with_place(absl::InvalidArgumentError("malformed answer: expected a list of items and a bool"));
  arrived->values = &parts->values(0);
  arrived->items = *items;
  arrived->last = parts->values(1).boolean();
  // An answer without items takes no part of the window.
  if (*items > 0) arrived->bytes = bytes_of(payload);
  return arrived;
}

void StreamReader::run_or_close(absl::FunctionRef<void()> step) noexcept {
  try {
    step();
  } catch (...) {
    const absl::Status failed = describe_error([this] { return with_place(caught("the next items")); });
    run_or_end("the end of a stream", [&] { close_with(failed, Close::kAlways); });
  }
}

void StreamReader::answered(uint64_t sequence, absl::StatusOr<IncomingPayload> in) noexcept {
  run_or_close([&] { add_answer(sequence, std::move(in)); });
}

void StreamReader::add_answer(uint64_t sequence, absl::StatusOr<IncomingPayload> in) {
  {
    MutexLock lock(mutex_);
    if (handle_ == nullptr) {
      takes_.erase(sequence);
      return;
    }
  }
  absl::StatusOr<std::shared_ptr<Arrived>> arrived = open_answer(std::move(in));
  std::shared_ptr<RRefHandle> handle;
  Waiter waiter;
  std::optional<Next> next;
  uint64_t timer = 0;
  bool refill = false;
  {
    MutexLock lock(mutex_);
    takes_.erase(sequence);
    if (handle_ == nullptr) return;
    early_.emplace(sequence, std::move(arrived));
    for (auto first = early_.begin(); first != early_.end() && first->first == expected_ && !end_;
         first = early_.begin()) {
      ++expected_;
      absl::StatusOr<std::shared_ptr<Arrived>> batch = std::move(first->second);
      early_.erase(first);
      window_.arrived(batch.ok() ? (*batch)->items : 0, batch.ok() ? (*batch)->bytes : 0);
      if (!batch.ok()) {
        end_ = batch.status();
      } else {
        if ((*batch)->last) end_ = absl::OkStatus();
        if ((*batch)->items > 0) ready_.push_back(*std::move(batch));
      }
    }
    if (end_) handle.swap(handle_);
    if (waiter_ && (!ready_.empty() || end_)) {
      next = next_locked();
      waiter = std::exchange(waiter_, nullptr);
      timer = std::exchange(timer_, 0);
    }
    // An answer with fewer items than its take has asked for leaves a part of the window unused. A reader
    // that waits asks for it itself.
    refill = !waiter && handle_ != nullptr && window_.has_room();
  }
  if (refill) {
    // Not on this thread, because sending may block.
    if (const std::shared_ptr<Executor> tasks = executor()) {
      tasks->post_clean([weak = weak_from_this()] {
        if (const std::shared_ptr<StreamReader> reader = weak.lock()) reader->send_takes();
      });
    }
  }
  if (!waiter) return;
  if (timer != 0) {
    if (const std::shared_ptr<Agent> agent = agent_.lock()) agent->services().timers().cancel(timer);
  }
  waiter(*std::move(next));
}

std::optional<StreamReader::Next> StreamReader::next_locked() {
  if (ready_.empty()) {
    if (end_) return Next{nullptr, 0, *end_};
    return std::nullopt;
  }
  const std::shared_ptr<Arrived>& batch = ready_.front();
  Next next = {batch, batch->next, absl::OkStatus()};
  // The last item of a batch has the rest of its bytes.
  const uint64_t left = batch->items - batch->next;
  const uint64_t bytes = batch->bytes / left;
  batch->bytes -= bytes;
  window_.read(bytes);
  if (++batch->next == batch->items) ready_.pop_front();
  return next;
}

std::optional<StreamReader::Next> StreamReader::try_next(bool& refill) {
  MutexLock lock(mutex_);
  std::optional<Next> next;
  // While a wait is in progress the item belongs to it.
  if (!waiter_) next = next_locked();
  refill = handle_ != nullptr && window_.has_room();
  return next;
}

void StreamReader::wait(Waiter waiter) {
  const std::shared_ptr<Agent> agent = agent_.lock();
  std::optional<Next> next;
  {
    MutexLock lock(mutex_);
    if (waiter_) {
      next = Next{nullptr, 0,
                  absl::FailedPreconditionError(
                      "another wait for an item of the stream is in progress; wait for one item at a time")};
    } else {
      next = next_locked();
      // Without an agent nothing arrives.
      if (!next && agent == nullptr)
        next = Next{nullptr, 0, absl::FailedPreconditionError("the agent of the stream has been shut down")};
      if (!next) {
        const absl::Time until = std::min(agent->services().call_deadline(options_.item_timeout), deadline_);
        waiter_ = std::move(waiter);
        const uint64_t number = ++wait_;
        timer_ = agent->services().timers().schedule(until, [weak = weak_from_this(), number] {
          if (const std::shared_ptr<StreamReader> reader = weak.lock()) reader->expire(number);
        });
      }
    }
  }
  if (next) waiter(*std::move(next));
}

void StreamReader::expire(std::optional<uint64_t> number) {
  const bool whole = !number || Clock::system().now() >= deadline_;
  close_with(with_place(absl::DeadlineExceededError(
                 whole ? "the stream did not end within its total timeout"
                       : "no item arrived within the timeout of the stream's destination or reference")),
             Close::kIfOpen, number);
}

absl::Status StreamReader::with_place(const absl::Status& status) const {
  return with_worker(
      with_context(status, absl::StrCat("the stream of \"", *callee_, "\" on worker \"", owner_.name, "\"")),
      owner_.name);
}

}  // namespace gradwire::rpc
