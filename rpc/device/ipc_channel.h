#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/device/incoming_transfers.h"
#include "gradwire/rpc/device/outgoing_transfers.h"
#include "gradwire/rpc/device/sharing.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/arrival_order.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

// The channel "ipc" of one agent: tensors on devices travel to other processes of the same host without being
// copied to the host. It finds out with which workers this works, and has both sides of the transfers.
// Thread-safe. Messages that are on their way share it.
class IpcChannel : public DeviceTransfers, public std::enable_shared_from_this<IpcChannel> {
 public:
  struct Options {
    // This worker's devices whose memory it shares, or on which it reads memory of other processes.
    std::vector<Device> devices;
    // The user has chosen the channel. Then workers on other hosts are logged too.
    bool chosen = false;
  };
  // The first two outlive it, as far as it is used before shutdown().
  IpcChannel(ReferenceHost& host, ArrivalOrder& arrival_order, std::shared_ptr<DeviceSharing> sharing,
             Options options);

  // Adds the identities of this worker's devices to its record.
  void announce(proto::WorkerRecord& record);
  void joined(const Worker& worker, const proto::WorkerRecord& record);
  // The worker has left or is dead. Nothing that it sent before is read any more.
  void lose(const Worker& worker, bool dead);
  // As PeerSink::on_settled().
  void settled(const Worker& worker) { incoming_->settled(worker.incarnation); }

  // Serves the services of proto/rpc.proto, "Transfers".
  void serve(const ServiceCall& call);
  // Whether no message with shared tensors is on its way, in either direction, and no probe.
  bool idle() const;
  void shutdown();
  void count(AgentTables& tables) const;

  // DeviceTransfers
  DeviceSharing& sharing() override { return *sharing_; }
  bool can_send(uint64_t worker, const Device& device) override;
  void refused(uint64_t worker, const Device& device, const absl::Status& reason) override;
  absl::StatusOr<Started> start(uint64_t worker, std::unique_ptr<Shipment> shipment) override;
  std::shared_ptr<void> arrived(uint64_t worker, uint64_t number) override;
  absl::Status begin_read(uint64_t worker, uint64_t number) override;
  void end_read(uint64_t worker, uint64_t number) override;

 private:
  struct Member {
    Worker worker;
    // Its devices that it can share, by the identity of the physical device.
    HashMap<std::string, Device> devices;
    // Why it cannot share the others, for the log.
    std::string problems;
    bool same_host = false;
  };

  // The worker's name for the same physical device. FailedPrecondition with the reason why the device has no
  // such name.
  absl::StatusOr<Device> counterpart(const Member& member, const Device& device) const;
  void probe(const Worker& to, const Device& device, const Device& theirs);
  void probed(const Worker& to, const Device& device, const absl::Status& result);
  void log_failure(const std::string& worker, const Device& device, const absl::Status& reason) const;
  // Closes later what streams still use now.
  void sweep_later();

  ReferenceHost& host_;
  const std::shared_ptr<DeviceSharing> sharing_;
  const Options options_;
  // The identities of options_.devices, in the same order. An error is the reason why a device has none.
  std::vector<absl::StatusOr<std::string>> identities_;
  const std::shared_ptr<OutgoingTransfers> outgoing_;
  const std::shared_ptr<IncomingTransfers> incoming_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  HashMap<uint64_t, Member> members_ ABSL_GUARDED_BY(mutex_);
  SharingPairs pairs_ ABSL_GUARDED_BY(mutex_);
  std::size_t probes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Has the channel serve its messages, and stop with the agent.
std::unique_ptr<AgentExtension> make_extension(std::shared_ptr<IpcChannel> channel);

}  // namespace gradwire::rpc
