#include "gradwire/rpc/device/outgoing_transfers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/rpc/device/ipc_services.h"
#include "gradwire/rpc/link/goodbye.h"

namespace gradwire::rpc {

// Lives while the message may be on its way: on its link, or with the call that was not sent yet.
class OutgoingTransfers::Kept : public HandedOver {
 public:
  Kept(std::shared_ptr<OutgoingTransfers> owner, uint64_t worker, uint64_t number)
      : owner_(std::move(owner)), worker_(worker), number_(number) {}
  ~Kept() override { owner_->abandon(worker_, number_); }
  bool taken() const override { return !owner_->contains(worker_, number_); }

 private:
  const std::shared_ptr<OutgoingTransfers> owner_;
  const uint64_t worker_;
  const uint64_t number_;
};

OutgoingTransfers::OutgoingTransfers(ReferenceHost& host, ArrivalOrder& arrival_order,
                                     std::shared_ptr<DeviceSharing> sharing)
    : host_(host), arrival_order_(arrival_order), sharing_(std::move(sharing)) {}

absl::StatusOr<DeviceTransfers::Started> OutgoingTransfers::start(uint64_t worker,
                                                                  std::unique_ptr<Shipment> shipment) {
  MutexLock lock(mutex_);
  if (closed_) return absl::UnavailableError("this worker has shut down");
  const std::optional<uint64_t> number = table_.begin(worker);
  if (!number && table_.is_lost(worker)) {
    return absl::UnavailableError("the receiver has left or was declared dead");
  }
  if (!number) {
    return absl::ResourceExhaustedError(absl::StrCat("the receiver has not reported the end of ",
                                                     TransferTable::kMaxOpen,
                                                     " messages with tensors on devices"));
  }
  shipments_.emplace(Key(worker, *number), std::move(shipment));
  return DeviceTransfers::Started{*number, std::make_shared<Kept>(shared_from_this(), worker, *number)};
}

bool OutgoingTransfers::has_room(uint64_t worker) const {
  MutexLock lock(mutex_);
  return table_.open(worker) < TransferTable::kMaxOpen / 2;
}

bool OutgoingTransfers::contains(uint64_t worker, uint64_t number) const {
  MutexLock lock(mutex_);
  return table_.contains(worker, number);
}

absl::Status OutgoingTransfers::consumed(uint64_t worker, const proto::TransfersConsumed& report) {
  HashSet<uint64_t> numbers(report.numbers().begin(), report.numbers().end());
  if (numbers.size() != static_cast<std::size_t>(report.numbers_size()) ||
      numbers.size() > TransferTable::kMaxOpen) {
    return absl::InvalidArgumentError(absl::StrCat("malformed TransfersConsumed: got ", report.numbers_size(),
                                                   " numbers, ", numbers.size(), " of them different"));
  }
  Shipments ended;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    for (const uint64_t number : numbers) {
      switch (table_.consumed(worker, number)) {
        case TransferTable::Consumed::kEnded: {
          Shipments one = take_locked(worker, {number});
          std::move(one.begin(), one.end(), std::back_inserter(ended));
          break;
        }
        case TransferTable::Consumed::kEndedBefore:
          break;
        case TransferTable::Consumed::kUnknown:
          status = absl::InvalidArgumentError(absl::StrCat(
              "malformed TransfersConsumed: no transfer to this worker has the number ", number));
          break;
      }
    }
  }
  end(std::move(ended), /*dead=*/false);
  return status;
}

void OutgoingTransfers::abandon(uint64_t worker, uint64_t number) {
  {
    MutexLock lock(mutex_);
    if (closed_ || !table_.abandon(worker, number)) return;
  }
  // On another thread, because this one may hold locks, and sending may connect.
  Executor::Task task = [self = shared_from_this(), worker] { self->reclaim(worker); };
  // If the executor refuses the task, the agent ends, and shutdown() has ended the transfer, or will.
  (void)host_.executor()->post_clean(task);
}

void OutgoingTransfers::reclaim(uint64_t worker) {
  const absl::StatusOr<Worker> to = host_.find_worker_by_incarnation(worker);
  proto::TransfersReclaim message;
  {
    MutexLock lock(mutex_);
    // A worker that is not known any more is lost, so lose() has ended the transfers, or will.
    if (closed_ || !to.ok()) return;
    for (const uint64_t number : table_.begin_reclaim(worker)) message.add_numbers(number);
  }
  if (message.numbers_size() == 0) return;
  // The departures are read now: none of these transfers is sent after this.
  to_proto(arrival_order_.departures(worker), *message.mutable_sent());
  host_
      .call_service(*to, kTransfersReclaim, message.SerializeAsString(), nullptr,
                    {absl::InfiniteFuture(), /*repeat=*/true})
      .on_ready_inline([self = shared_from_this(), worker](const absl::StatusOr<ServiceReply>& reply) {
        // An error means that the receiver is lost, or that this agent ends.
        if (!reply.ok()) return;
        Shipments ended;
        {
          MutexLock lock(self->mutex_);
          ended = self->take_locked(worker, self->table_.reclaimed(worker));
        }
        self->end(std::move(ended), /*dead=*/false);
        self->reclaim(worker);
      });
}

void OutgoingTransfers::lose(uint64_t worker, bool dead) {
  Shipments ended;
  {
    MutexLock lock(mutex_);
    ended = take_locked(worker, table_.lose(worker));
  }
  end(std::move(ended), dead);
}

void OutgoingTransfers::shutdown() {
  HashMap<Key, std::unique_ptr<Shipment>> ended;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    ended.swap(shipments_);
    table_ = TransferTable();
  }
  for (auto& [key, shipment] : ended) shipment->release();
}

std::size_t OutgoingTransfers::open() const {
  MutexLock lock(mutex_);
  return table_.size();
}

OutgoingTransfers::Shipments OutgoingTransfers::take_locked(uint64_t worker,
                                                            const std::vector<uint64_t>& numbers) {
  Shipments taken;
  for (const uint64_t number : numbers) {
    const auto found = shipments_.find(Key(worker, number));
    if (found == shipments_.end()) continue;
    taken.push_back(std::move(found->second));
    shipments_.erase(found);
  }
  return taken;
}

void OutgoingTransfers::end(Shipments shipments, bool dead) {
  if (shipments.empty()) return;
  static TaskCost* const cost = new TaskCost;
  host_.executor()->post_clean_or_run(
      [self = shared_from_this(), shipments = std::move(shipments), dead]() mutable {
        for (std::unique_ptr<Shipment>& shipment : shipments) {
          if (!dead) shipment->release();
          shipment = nullptr;
        }
      },
      cost);
}

}  // namespace gradwire::rpc
