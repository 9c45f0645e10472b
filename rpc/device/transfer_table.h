#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::rpc {

// The transfers of tensors on devices that this worker has sent to other processes, and that these have not
// reported as consumed (proto/rpc.proto, "Transfers"): a pure state machine. It decides how long the memory
// of a transfer must be kept.
//
// States of a transfer, by its receiver and its number:
//   open        The message may be under way, or may wait at the receiver. The receiver may begin to read.
//   abandoned   The message was never sent, or its connection has ended. The receiver may still read.
//   asked       A Reclaim with the number is under way.
//   ended       Not in the table. The receiver reads nothing any more, except by copies that it has enqueued
//               before it said so.
// Not thread-safe.
class TransferTable {
 public:
  // Maximum number of transfers to one receiver that have not ended. A receiver that does not report makes
  // this worker keep no more memory than these transfers have.
  static constexpr std::size_t kMaxOpen = 1024;

  // Begins a transfer. Returns its number, which rises with each transfer to this receiver; nullopt if too
  // many have not ended, or if the receiver is lost.
  std::optional<uint64_t> begin(uint64_t receiver);
  bool is_lost(uint64_t receiver) const {
    const auto found = receivers_.find(receiver);
    return found != receivers_.end() && found->second.lost;
  }

  enum class Consumed {
    kEnded,
    // The transfer had ended before: the report has arrived twice, or after a Reclaim.
    kEndedBefore,
    // No transfer to this receiver has ever had this number.
    kUnknown,
  };
  // The receiver has reported that it does not read any more.
  Consumed consumed(uint64_t receiver, uint64_t number);

  // The message will not be sent again, and is not on an open connection. Returns whether the transfer was
  // open.
  bool abandon(uint64_t receiver, uint64_t number);
  // The abandoned transfers, for a Reclaim, which become asked. Empty if no transfer is abandoned, or if an
  // earlier Reclaim is under way.
  std::vector<uint64_t> begin_reclaim(uint64_t receiver);
  // The Reclaim was answered. Returns the transfers that have ended by this.
  std::vector<uint64_t> reclaimed(uint64_t receiver);

  // The receiver is dead or has left. Returns its transfers, which have ended.
  std::vector<uint64_t> lose(uint64_t receiver);

  bool contains(uint64_t receiver, uint64_t number) const;
  // Number of transfers that have not ended: to this receiver, and in all.
  std::size_t open(uint64_t receiver) const;
  std::size_t size() const;

 private:
  struct Receiver {
    uint64_t newest = 0;
    std::set<uint64_t> open;
    std::set<uint64_t> abandoned;
    std::set<uint64_t> asked;
    // A Reclaim is under way, even if all of its transfers were reported as consumed meanwhile. Its answer
    // says nothing about transfers that were not in it.
    bool reclaiming = false;
    bool lost = false;

    std::size_t size() const { return open.size() + abandoned.size() + asked.size(); }
  };

  HashMap<uint64_t, Receiver> receivers_;
};

}  // namespace gradwire::rpc
