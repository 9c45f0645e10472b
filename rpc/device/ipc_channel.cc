#include "gradwire/rpc/device/ipc_channel.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/host.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/device/ipc_services.h"
#include "gradwire/rpc/device/sharing.h"

namespace gradwire::rpc {
namespace {

constexpr absl::Duration kSweepAfter = absl::Milliseconds(20);
// At its end an agent waits so long for streams that still read memory of other processes.
constexpr absl::Duration kCloseTimeout = absl::Seconds(5);
constexpr absl::Duration kCloseCheck = absl::Milliseconds(1);
// Limits for what other workers say about their devices.
constexpr int kMaxDevices = 128;
constexpr std::size_t kMaxProblem = 500;

class Extension : public AgentExtension {
 public:
  explicit Extension(std::shared_ptr<IpcChannel> channel) : channel_(std::move(channel)) {}

  absl::string_view name() const override { return "ipc"; }
  bool gives_back(uint32_t service) const override { return service != kSharingProbe; }
  bool serves(uint32_t service) const override {
    return service >= kTransfersConsumed && service <= kSharingProbe;
  }
  void serve(ServiceCall call) override { channel_->serve(call); }
  // A probe enqueues work on a device, which may take long if the device is used for the first time.
  bool serves_on_arrival(uint32_t service) const override { return service != kSharingProbe; }
  bool idle() const override { return channel_->idle(); }
  void shutdown(const absl::Status&) override { channel_->shutdown(); }

 private:
  const std::shared_ptr<IpcChannel> channel_;
};

}  // namespace

std::unique_ptr<AgentExtension> make_extension(std::shared_ptr<IpcChannel> channel) {
  return std::make_unique<Extension>(std::move(channel));
}

IpcChannel::IpcChannel(ReferenceHost& host, ArrivalOrder& arrival_order,
                       std::shared_ptr<DeviceSharing> sharing, Options options)
    : host_(host),
      sharing_(std::move(sharing)),
      options_(std::move(options)),
      outgoing_(std::make_shared<OutgoingTransfers>(host, arrival_order, sharing_)),
      incoming_(std::make_shared<IncomingTransfers>(host, arrival_order)) {
  for (const Device& device : options_.devices) identities_.push_back(sharing_->identity(device));
}

void IpcChannel::announce(proto::WorkerRecord& record) {
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    proto::PhysicalDevice& device = *record.add_physical_devices();
    device.set_device(options_.devices[i].str());
    if (identities_[i].ok()) {
      device.set_identity(*identities_[i]);
    } else {
      device.set_problem(std::string(identities_[i].status().message().substr(0, kMaxProblem)));
    }
  }
  record.set_host(boot_id());
}

void IpcChannel::joined(const Worker& worker, const proto::WorkerRecord& record) {
  Member member;
  member.worker = worker;
  member.same_host = !boot_id().empty() && record.host() == boot_id();
  for (const proto::PhysicalDevice& each : record.physical_devices()) {
    if (member.devices.size() >= kMaxDevices) break;
    const absl::StatusOr<Device> device = Device::parse(each.device());
    if (!device.ok() || device->is_cpu()) continue;
    if (!each.identity().empty()) {
      member.devices.try_emplace(each.identity(), *device);
    } else if (member.problems.size() < kMaxProblem) {
      absl::StrAppend(&member.problems, "; it cannot share its ", device->str(), ": ",
                      absl::CHexEscape(each.problem().substr(0, kMaxProblem)));
    }
  }
  MutexLock lock(mutex_);
  members_.insert_or_assign(worker.incarnation, std::move(member));
}

void IpcChannel::lose(const Worker& worker, bool dead) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    members_.erase(worker.incarnation);
    pairs_.forget(worker.incarnation);
  }
  incoming_->lose(worker.incarnation);
  outgoing_->lose(worker.incarnation, dead);
  sharing_->forget(worker.incarnation);
  sweep_later();
}

void IpcChannel::sweep_later() {
  if (sharing_->sweep()) return;
  TimerQueue& timers = host_.timers();
  timers.schedule(timers.clock().now() + kSweepAfter, [weak = weak_from_this()] {
    if (const std::shared_ptr<IpcChannel> self = weak.lock()) self->sweep_later();
  });
}

void IpcChannel::serve(const ServiceCall& call) {
  switch (call.service) {
    case kTransfersConsumed: {
      proto::TransfersConsumed report;
      absl::Status status = absl::InvalidArgumentError("malformed TransfersConsumed");
      if (report.ParseFromString(call.body)) status = outgoing_->consumed(call.from.incarnation, report);
      ServiceReply reply;
      // The receiver does not wait for it.
      reply.deferrable = true;
      if (status.ok()) {
        call.reply(std::move(reply));
      } else {
        call.reply(status);
      }
      break;
    }
    case kTransfersReclaim:
      incoming_->reclaim(call);
      break;
    default:
      serve_probe(call, host_.self().incarnation, options_.devices, *this);
  }
}

bool IpcChannel::idle() const {
  if (outgoing_->open() > 0 || incoming_->arrived() > 0 || incoming_->unreported() > 0) return false;
  MutexLock lock(mutex_);
  return probes_ == 0;
}

// The order of the steps matters: first no reads begin any more, then this worker's own transfers end.
// Streams may still read what was opened here. Only a later agent of this process that uses the channel would
// close what is still open after this.
void IpcChannel::shutdown() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  incoming_->shutdown();
  outgoing_->shutdown();
  sharing_->close();
  const absl::Time until = absl::Now() + kCloseTimeout;
  while (!sharing_->sweep()) {
    if (absl::Now() >= until) {
      log(LogLevel::kWarning, "worker \"", host_.self().name,
          "\" ends while its devices still read memory of ",
          "other processes; this memory stays open here until the process ends, or uses the channel again");
      return;
    }
    absl::SleepFor(kCloseCheck);
  }
}

void IpcChannel::count(AgentTables& tables) const {
  tables.open_transfers = outgoing_->open();
  tables.arrived_transfers = incoming_->arrived();
  tables.refused_transfers = incoming_->refused();
  tables.unreported_transfers = incoming_->unreported();
  MutexLock lock(mutex_);
  tables.sharing_probes = probes_;
}

absl::StatusOr<Device> IpcChannel::counterpart(const Member& member, const Device& device) const {
  if (!member.same_host)
    return absl::FailedPreconditionError("the worker is on another host, or the host is not known");
  const auto own = std::find(options_.devices.begin(), options_.devices.end(), device);
  if (own == options_.devices.end())
    return absl::FailedPreconditionError("the device is not among those of the options");
  const absl::StatusOr<std::string>& identity = identities_[own - options_.devices.begin()];
  if (!identity.ok()) return identity.status();
  const auto found = member.devices.find(*identity);
  if (found == member.devices.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker does not see this physical device", member.problems));
  }
  return found->second;
}

bool IpcChannel::can_send(uint64_t worker, const Device& device) {
  Worker to;
  absl::StatusOr<Device> theirs;
  // That memory is not shared between hosts is worth a line only if the user expects something else.
  bool unexpected = options_.chosen;
  {
    MutexLock lock(mutex_);
    const auto member = members_.find(worker);
    if (closed_ || member == members_.end()) return false;
    switch (pairs_.ask(worker, device)) {
      case SharingPairs::Use::kNo:
        return false;
      case SharingPairs::Use::kYes:
        return outgoing_->has_room(worker);
      case SharingPairs::Use::kProbe:
        break;
    }
    to = member->second.worker;
    theirs = counterpart(member->second, device);
    unexpected = unexpected || member->second.same_host;
    if (theirs.ok()) {
      ++probes_;
    } else {
      pairs_.fail(worker, device);
    }
  }
  if (!theirs.ok()) {
    if (unexpected) log_failure(to.name, device, theirs.status());
    return false;
  }
  // On another thread, with streams of its own.
  Executor::Task task = [self = shared_from_this(), to, device, theirs = *theirs] {
    self->probe(to, device, theirs);
  };
  if (!host_.executor()->post_clean(task)) {
    MutexLock lock(mutex_);
    --probes_;
  }
  return false;
}

void IpcChannel::probe(const Worker& to, const Device& device, const Device& theirs) {
  SharingProbe{to, options_.devices, device, theirs, shared_from_this()}.send(
      host_, [self = shared_from_this(), to, device](const absl::Status& result) {
        self->probed(to, device, result);
      });
}

void IpcChannel::probed(const Worker& to, const Device& device, const absl::Status& result) {
  bool failed = false;
  {
    MutexLock lock(mutex_);
    --probes_;
    if (!members_.contains(to.incarnation)) return;
    if (result.ok()) {
      pairs_.succeed(to.incarnation, device);
    } else if (absl::IsFailedPrecondition(result)) {
      failed = pairs_.fail(to.incarnation, device);
    } else {
      failed = pairs_.interrupt(to.incarnation, device);
    }
    failed = failed && !closed_;
  }
  if (failed) log_failure(to.name, device, result);
  if (result.ok()) {
    log(LogLevel::kInfo, "worker \"", host_.self().name, "\" shares the memory of ", device.str(),
        " with worker \"", to.name, "\"");
  }
}

void IpcChannel::refused(uint64_t worker, const Device& device, const absl::Status& reason) {
  std::string name;
  {
    MutexLock lock(mutex_);
    const auto member = members_.find(worker);
    if (member == members_.end() || !pairs_.fail(worker, device)) return;
    name = member->second.worker.name;
  }
  log_failure(name, device, reason);
}

void IpcChannel::log_failure(const std::string& worker, const Device& device,
                             const absl::Status& reason) const {
  log(LogLevel::kWarning, "worker \"", host_.self().name, "\" cannot share the memory of ", device.str(),
      " with worker \"", worker, "\": ", reason.message(),
      "; tensors between them are copied through the host");
}

absl::StatusOr<DeviceTransfers::Started> IpcChannel::start(uint64_t worker,
                                                           std::unique_ptr<Shipment> shipment) {
  return outgoing_->start(worker, std::move(shipment));
}

std::shared_ptr<void> IpcChannel::arrived(uint64_t worker, uint64_t number) {
  return incoming_->arrived(worker, number);
}

absl::Status IpcChannel::begin_read(uint64_t worker, uint64_t number) {
  return incoming_->begin_read(worker, number);
}

void IpcChannel::end_read(uint64_t worker, uint64_t number) { incoming_->end_read(worker, number); }

}  // namespace gradwire::rpc
