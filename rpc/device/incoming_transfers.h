#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/device/arrived_transfers.h"
#include "gradwire/rpc/link/settlement.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

// The receiver's side of the transfers of one agent (proto/rpc.proto, "Transfers"): reports to the senders
// which transfers were read or dropped, and answers their Reclaims. ArrivedTransfers decides. Thread-safe.
// Shared with the messages that have arrived.
class IncomingTransfers : public std::enable_shared_from_this<IncomingTransfers> {
 public:
  // Both outlive it, as far as it is used before shutdown().
  IncomingTransfers(ReferenceHost& host, Settlement& settlement) : host_(host), settlement_(settlement) {}

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
  Settlement& settlement_;

  mutable Mutex mutex_;
  CondVar read_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  ArrivedTransfers transfers_ ABSL_GUARDED_BY(mutex_);
  // Sender -> transfers that have ended, for the next report.
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> unreported_ ABSL_GUARDED_BY(mutex_);
  // Number of transfers in reports that were not answered yet.
  std::size_t reporting_ ABSL_GUARDED_BY(mutex_) = 0;
  // The answers of Reclaims that wait for a read, by token.
  absl::flat_hash_map<uint64_t, Answer> answers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::rpc
