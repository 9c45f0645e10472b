#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/device/ipc_channel.h"
#include "gradwire/rpc/device/testing/fake_devices.h"
#include "gradwire/rpc/link/arrival_order.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc::testing {

// A worker that consists of the channel "ipc", threads and timers. Messages to another worker of the test run
// on that one's threads, in any order. A message that must be repeated until it is answered arrives twice now
// and then. Thread-safe. No worker may be destroyed before all are stopped.
class IpcWorker : public ReferenceHost, public ArrivalOrder {
 public:
  IpcWorker(std::string name, uint64_t incarnation, int open_after_forget = 0);
  ~IpcWorker();
  IpcWorker(const IpcWorker&) = delete;
  IpcWorker& operator=(const IpcWorker&) = delete;

  // The two workers know each other from now on.
  static void introduce(IpcWorker& a, IpcWorker& b);
  // The other worker has left or is dead.
  void lose(const IpcWorker& other, bool dead);
  // Stops the channel, and then all threads. Idempotent.
  void stop();

  uint64_t incarnation() const { return self_.incarnation; }
  IpcChannel& channel() { return *channel_; }
  FakeSharing& sharing() { return *sharing_; }
  // Number of messages to this service of this worker.
  int calls(uint32_t service) const;
  bool is_empty() const;

  // A message with a tensor, and what must be kept while it is on its way (DeviceTransfers::Started::kept).
  struct Sent {
    absl::Status status;
    std::string content;
    proto::Payload payload;
    std::shared_ptr<HandedOver> kept;
    // Its place among the messages of its sender to this receiver, from depart().
    uint64_t departure = 0;
    // The sender expects that the tensor is read.
    bool is_certain = false;
    bool has_transfer() const { return payload.has_transfer(); }
  };
  Sent encode(const IpcWorker& to, std::string content);
  // Counts the message as sent. Pass it to deliver() exactly once, at any later time.
  void depart(const IpcWorker& to, Sent& message);
  // Runs the message on the threads of `to`, which reads the tensor and compares its content, or drops the
  // message unread.
  void deliver(IpcWorker& to, const Sent& message, bool read);

  // Numbers of tensors that were read, and that were refused with Unavailable.
  uint64_t reads() const { return reads_; }
  uint64_t refusals() const { return refusals_; }
  // No tensor may be read from now on.
  void expect_no_reads() { reads_end_ = true; }

  // ReferenceHost
  const Worker& self() const override { return self_; }
  Id next_id() override { return {}; }
  const std::shared_ptr<ThreadPool>& executor() const override { return executor_; }
  TimerQueue& timers() const override { return timers_; }
  const std::shared_ptr<FenceWatch>& fences() const override { return no_fences_; }
  const std::shared_ptr<StreamOrder>& stream_order() const override { return no_order_; }
  absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const override;
  absl::Status worker_status(const Worker& worker) const override;
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                    std::unique_ptr<TensorSet> tensors,
                                    const ServiceOptions& options) override;
  void on_accused(uint64_t /*incarnation*/) override {}
  std::weak_ptr<Agent> weak_agent() override { return {}; }

  // ArrivalOrder: all messages to a worker travel on one connection, with the number 1.
  Departures departures(uint64_t incarnation) const override;
  bool require(uint64_t incarnation, const Departures& sent) override;
  bool settled(uint64_t incarnation) override;

 private:
  // Messages from and to one other worker.
  struct Counts {
    uint64_t sent = 0;
    // All messages up to this one were handled, and these later ones.
    uint64_t handled = 0;
    HashSet<uint64_t> handled_later;
    uint64_t due = 0;
  };

  DeviceArrival arrival(uint64_t from) const;
  void handle(const Worker& from, const Sent& message, bool read);

  const Worker self_;
  const std::vector<Device> devices_ = {Device(kDevice)};
  const std::shared_ptr<ThreadPool> executor_;
  mutable TimerQueue timers_;
  const std::shared_ptr<FenceWatch> no_fences_;
  const std::shared_ptr<StreamOrder> no_order_;
  const std::shared_ptr<FakeSharing> sharing_;
  std::atomic<uint64_t> reads_{0};
  std::atomic<uint64_t> refusals_{0};
  std::atomic<bool> reads_end_{false};

  mutable Mutex mutex_;
  HashMap<uint64_t, IpcWorker*> others_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, Counts> counts_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint32_t, int> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t repeatable_ ABSL_GUARDED_BY(mutex_) = 0;

  // Uses the members above.
  const std::shared_ptr<IpcChannel> channel_;
};

}  // namespace gradwire::rpc::testing
