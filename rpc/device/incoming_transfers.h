#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/link/arrival_order.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

// The transfers of tensors that other processes have sent to this worker (proto/rpc.proto, "Transfers"): a
// pure state machine. It decides whether the memory of another process may be read, and when that process may
// be notified that this worker does not read it any more.
//
// States of a transfer, by its sender and its number:
//   unknown   Its message has not arrived, or it has ended.
//   waiting   Its message has arrived.
//   reading   A thread is enqueueing the copies from the sender's memory.
//   refused   The sender has reclaimed the memory. It must not be read. Also for a message that has not
//             arrived and still may.
// Not thread-safe.
class ArrivedTransfers {
 public:
  // Maximum number of refusals that are remembered for one sender.
  static constexpr std::size_t kMaxRefused = 65'536;

  // The message has arrived.
  void arrive(uint64_t sender, uint64_t number);

  enum class Read {
    // The memory may be read until end_read().
    kAllowed,
    // The sender has reclaimed the memory, or is lost, or close() was called.
    kRefused,
    // The message has not arrived, or was read before.
    kUnknown,
  };
  Read begin_read(uint64_t sender, uint64_t number);
  // All copies are enqueued, and the events that mark their end are recorded. The transfer has ended here;
  // report it. Returns the Reclaims that can be answered now.
  std::vector<uint64_t> end_read(uint64_t sender, uint64_t number);
  // The message is gone. Returns whether it ended by this, unread; then report it.
  bool drop(uint64_t sender, uint64_t number);

  enum class Reclaim {
    // None of the transfers will be read. Answer.
    kAnswer,
    // Some are being read. end_read() or lose() returns `token`; answer then.
    kLater,
    // The sender has reclaimed too many transfers that have not arrived.
    kTooMany,
  };
  // The sender reclaims these transfers. `settled`: every message that it sent before has arrived. `token`
  // identifies the request.
  Reclaim reclaim(uint64_t sender, const std::vector<uint64_t>& numbers, bool settled, uint64_t token);
  // No message that the sender sent before its last Reclaim can arrive any more.
  void settle(uint64_t sender);

  // The sender is lost: nothing of it is read from now on. Returns the Reclaims of it that have no answer.
  std::vector<uint64_t> lose(uint64_t sender);
  // Nothing is read from now on.
  void close() { closed_ = true; }

  // Number of messages that have arrived and have not been read or dropped.
  std::size_t arrived() const { return transfers_.size(); }
  std::size_t reading() const { return reading_; }
  // Number of refusals of messages that have not arrived.
  std::size_t remembered() const;

 private:
  enum class State { kWaiting, kReading, kRefused };
  // A Reclaim that waits for transfers that are being read.
  struct Waiting {
    uint64_t sender = 0;
    std::set<uint64_t> reading;
  };
  using Key = std::pair<uint64_t, uint64_t>;

  HashMap<Key, State> transfers_;
  HashMap<uint64_t, Waiting> reclaims_;
  // Sender -> refused transfers whose messages have not arrived.
  HashMap<uint64_t, HashSet<uint64_t>> refused_;
  HashSet<uint64_t> lost_;
  std::size_t reading_ = 0;
  bool closed_ = false;
};

// The receiver's side of the transfers of one agent (proto/rpc.proto, "Transfers"): reports to the senders
// which transfers were read or dropped, and answers their Reclaims. ArrivedTransfers decides. Thread-safe.
// Shared with the messages that have arrived.
class IncomingTransfers : public std::enable_shared_from_this<IncomingTransfers> {
 public:
  // Both outlive it, as far as it is used before shutdown().
  IncomingTransfers(ReferenceHost& host, ArrivalOrder& arrival_order)
      : host_(host), arrival_order_(arrival_order) {}

  // As in DeviceTransfers.
  std::shared_ptr<void> arrived(uint64_t worker, uint64_t number);
  absl::Status begin_read(uint64_t worker, uint64_t number);
  void end_read(uint64_t worker, uint64_t number);

  // Serves TransfersReclaim.
  void reclaim(const ServiceCall& call);
  // Every message that the worker had sent before its Reclaims may have arrived.
  void settled(uint64_t worker);
  void lose(uint64_t worker);
  // Returns when no thread reads any more; from then on none begins to.
  void shutdown();

  // Messages that have arrived and were neither read nor dropped; refusals of messages that have not arrived.
  std::size_t arrived() const;
  std::size_t refused() const;
  // Transfers whose end the sender has not confirmed.
  std::size_t unreported() const;

 private:
  // Time in which transfers are collected for one report.
  static constexpr absl::Duration kReportAfter = absl::Milliseconds(1);
  using Answer = std::function<void(absl::StatusOr<ServiceReply>)>;

  void drop(uint64_t worker, uint64_t number);
  // Returns whether a report must be scheduled.
  bool report_locked(uint64_t worker, uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void schedule_report(uint64_t worker);
  void send_report(uint64_t worker);
  std::vector<Answer> take_locked(const std::vector<uint64_t>& tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ReferenceHost& host_;
  ArrivalOrder& arrival_order_;

  mutable Mutex mutex_;
  CondVar read_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  ArrivedTransfers transfers_ ABSL_GUARDED_BY(mutex_);
  // Sender -> transfers that have ended, for the next report.
  HashMap<uint64_t, std::vector<uint64_t>> unreported_ ABSL_GUARDED_BY(mutex_);
  // Number of transfers in reports that were not answered yet.
  std::size_t reporting_ ABSL_GUARDED_BY(mutex_) = 0;
  // The answers of Reclaims that wait for a read, by token.
  HashMap<uint64_t, Answer> answers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::rpc
