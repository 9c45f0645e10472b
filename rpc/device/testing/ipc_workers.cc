#include "gradwire/rpc/device/testing/ipc_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/proto/membership.pb.h"

namespace gradwire::rpc::testing {
namespace {

constexpr int kThreads = 4;
// Every third of the messages that may arrive twice does so.
constexpr uint64_t kTwice = 3;

}  // namespace

IpcWorker::IpcWorker(std::string name, uint64_t incarnation, int open_after_forget)
    : self_{std::move(name), static_cast<int32_t>(incarnation), incarnation},
      executor_(std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = kThreads})),
      sharing_(std::make_shared<FakeSharing>(open_after_forget)),
      channel_(std::make_shared<IpcChannel>(*this, *this, sharing_, IpcChannel::Options{devices_, true})) {}

IpcWorker::~IpcWorker() { stop(); }

void IpcWorker::introduce(IpcWorker& a, IpcWorker& b) {
  for (const auto& [to, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    proto::WorkerRecord record;
    for (const Device& device : other->devices_) record.add_devices(device.str());
    other->channel_->announce(record);
    {
      MutexLock lock(to->mutex_);
      to->others_.emplace(other->incarnation(), other);
    }
    to->channel_->joined(other->self_, record);
  }
}

void IpcWorker::lose(const IpcWorker& other, bool dead) {
  {
    MutexLock lock(mutex_);
    others_.erase(other.incarnation());
  }
  channel_->lose(other.self_, dead);
}

void IpcWorker::stop() {
  channel_->shutdown();
  executor_->shutdown();
  timers_.shutdown();
}

int IpcWorker::calls(uint32_t service) const {
  MutexLock lock(mutex_);
  const auto found = calls_.find(service);
  return found == calls_.end() ? 0 : found->second;
}

bool IpcWorker::is_empty() const {
  AgentTables tables;
  channel_->count(tables);
  return channel_->idle() && tables.total() == 0;
}

IpcWorker::Sent IpcWorker::encode(const IpcWorker& to, std::string content) {
  DeviceRoute route;
  route.from = incarnation();
  route.to = to.incarnation();
  route.local = false;
  route.transfers = channel_.get();
  Sent message;
  message.content = std::move(content);
  EncodedTensors encoded;
  message.status = tensor_backend()->encode(FakeTensor(message.content), TensorSharing::kCapture, &route,
                                            message.payload, encoded);
  message.kept = std::move(encoded.handed_over);
  return message;
}

void IpcWorker::depart(const IpcWorker& to, Sent& message) {
  MutexLock lock(mutex_);
  message.departure = ++counts_[to.incarnation()].sent;
}

void IpcWorker::deliver(IpcWorker& to, const Sent& message, bool read) {
  Sent arriving = message;
  // The receiver gets the message, not the sender's handle on it.
  arriving.kept = nullptr;
  Executor::Task task = [&to, from = self_, arriving = std::move(arriving), read] {
    to.handle(from, arriving, read);
  };
  // A worker that has stopped receives nothing.
  (void)to.executor_->post_clean(task);
}

void IpcWorker::handle(const Worker& from, const Sent& message, bool read) {
  const DeviceArrival arrival = this->arrival(from.incarnation);
  const std::shared_ptr<void> arrived = tensor_backend()->arrived(message.payload, arrival);
  {
    MutexLock lock(mutex_);
    Counts& counts = counts_[from.incarnation];
    counts.handled_later.insert(message.departure);
    while (counts.handled_later.erase(counts.handled + 1) > 0) ++counts.handled;
  }
  channel_->settled(from);
  if (!read) return;
  const bool too_late = reads_end_;
  const auto got = tensor_backend()->decode(message.payload, {}, &arrival);
  if (got.ok()) {
    EXPECT_FALSE(too_late && message.has_transfer()) << "read after the end";
    EXPECT_EQ(static_cast<const FakeTensor&>(**got).content(), message.content);
    ++reads_;
  } else {
    EXPECT_EQ(got.status().code(), absl::StatusCode::kUnavailable) << got.status();
    EXPECT_FALSE(message.is_certain) << got.status();
    ++refusals_;
  }
}

DeviceArrival IpcWorker::arrival(uint64_t from) const {
  return {&devices_, from, incarnation(), channel_.get()};
}

absl::StatusOr<Worker> IpcWorker::find_worker_by_incarnation(uint64_t incarnation) const {
  MutexLock lock(mutex_);
  const auto found = others_.find(incarnation);
  if (found == others_.end()) return absl::NotFoundError("unknown worker");
  return found->second->self_;
}

absl::Status IpcWorker::worker_status(const Worker& worker) const {
  return find_worker_by_incarnation(worker.incarnation).status();
}

Future<ServiceReply> IpcWorker::call_service(const Worker& to, uint32_t service, std::string body,
                                             std::unique_ptr<TensorSet> /*tensors*/,
                                             const ServiceOptions& options) {
  const Promise<ServiceReply> promise(executor_);
  IpcWorker* other = nullptr;
  bool twice = false;
  {
    MutexLock lock(mutex_);
    const auto found = others_.find(to.incarnation);
    if (found != others_.end()) other = found->second;
    twice = options.repeat && ++repeatable_ % kTwice == 0;
  }
  for (int i = 0; other != nullptr && i < (twice ? 2 : 1); ++i) {
    Executor::Task task = [other, call = ServiceCall{.from = self_,
                                                     .service = service,
                                                     .body = body,
                                                     .reply = [promise](absl::StatusOr<ServiceReply> reply) {
                                                       promise.set_result(std::move(reply));
                                                     }}] {
      {
        MutexLock lock(other->mutex_);
        ++other->calls_[call.service];
      }
      other->channel_->serve(call);
    };
    if (!other->executor_->post_clean(task)) other = nullptr;
  }
  if (other == nullptr) promise.set_error(absl::UnavailableError("the worker has stopped"));
  return promise.future();
}

Departures IpcWorker::departures(uint64_t incarnation) const {
  MutexLock lock(mutex_);
  const auto found = counts_.find(incarnation);
  return {.newest = 1, .open = {{1, found == counts_.end() ? 0 : found->second.sent}}};
}

bool IpcWorker::require(uint64_t incarnation, const Departures& sent) {
  MutexLock lock(mutex_);
  Counts& counts = counts_[incarnation];
  counts.due = std::max(counts.due, sent.open.at(0).messages);
  return counts.handled >= counts.due;
}

bool IpcWorker::settled(uint64_t incarnation) {
  MutexLock lock(mutex_);
  const Counts& counts = counts_[incarnation];
  return counts.handled >= counts.due;
}

}  // namespace gradwire::rpc::testing
