#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/device/transfer_table.h"
#include "gradwire/rpc/link/arrival_order.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

// The sender's side of the transfers of one agent (proto/rpc.proto, "Transfers"): keeps the shipments, and
// reclaims those whose message was lost. TransferTable decides. Thread-safe. Shared with its messages that
// are on their way.
class OutgoingTransfers : public std::enable_shared_from_this<OutgoingTransfers> {
 public:
  // The first two outlive it, as far as it is used before shutdown(). Shipments use `sharing`.
  OutgoingTransfers(ReferenceHost& host, ArrivalOrder& arrival_order, std::shared_ptr<DeviceSharing> sharing);

  // As DeviceTransfers::start().
  absl::StatusOr<DeviceTransfers::Started> start(uint64_t worker, std::unique_ptr<Shipment> shipment);
  // Whether start() has room for several more messages to this worker.
  bool has_room(uint64_t worker) const;

  // The worker has reported. InvalidArgument if the report is malformed.
  absl::Status consumed(uint64_t worker, const proto::TransfersConsumed& report);
  // The worker is lost. `dead`: its process may have ended, and with it the copies that it had enqueued.
  void lose(uint64_t worker, bool dead);
  // Ends all transfers.
  void shutdown();

  // Number of transfers that have not ended.
  std::size_t open() const;

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  using Shipments = std::vector<std::unique_ptr<Shipment>>;
  class Kept;

  bool contains(uint64_t worker, uint64_t number) const;
  void abandon(uint64_t worker, uint64_t number);
  // Sends a Reclaim, if there is something to reclaim, until it is answered.
  void reclaim(uint64_t worker);
  Shipments take_locked(uint64_t worker, const std::vector<uint64_t>& numbers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees shipments on the executor: tensors may own objects of the user.
  void end(Shipments shipments, bool dead);

  ReferenceHost& host_;
  ArrivalOrder& arrival_order_;
  const std::shared_ptr<DeviceSharing> sharing_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  TransferTable table_ ABSL_GUARDED_BY(mutex_);
  HashMap<Key, std::unique_ptr<Shipment>> shipments_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
