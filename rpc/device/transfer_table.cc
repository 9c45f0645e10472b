#include "gradwire/rpc/device/transfer_table.h"

#include <utility>

namespace gradwire::rpc {

std::optional<uint64_t> TransferTable::begin(uint64_t receiver) {
  Receiver& to = receivers_[receiver];
  if (to.lost || to.size() >= kMaxOpen) return std::nullopt;
  to.open.insert(++to.newest);
  return to.newest;
}

TransferTable::Consumed TransferTable::consumed(uint64_t receiver, uint64_t number) {
  const auto found = receivers_.find(receiver);
  if (found == receivers_.end() || number == 0 || number > found->second.newest) return Consumed::kUnknown;
  Receiver& from = found->second;
  const std::size_t erased =
      from.open.erase(number) + from.abandoned.erase(number) + from.asked.erase(number);
  return erased > 0 ? Consumed::kEnded : Consumed::kEndedBefore;
}

bool TransferTable::abandon(uint64_t receiver, uint64_t number) {
  const auto found = receivers_.find(receiver);
  if (found == receivers_.end() || found->second.open.erase(number) == 0) return false;
  found->second.abandoned.insert(number);
  return true;
}

std::vector<uint64_t> TransferTable::begin_reclaim(uint64_t receiver) {
  const auto found = receivers_.find(receiver);
  if (found == receivers_.end() || found->second.reclaiming || found->second.abandoned.empty()) return {};
  Receiver& from = found->second;
  from.reclaiming = true;
  from.asked = std::exchange(from.abandoned, {});
  return {from.asked.begin(), from.asked.end()};
}

std::vector<uint64_t> TransferTable::reclaimed(uint64_t receiver) {
  const auto found = receivers_.find(receiver);
  if (found == receivers_.end()) return {};
  found->second.reclaiming = false;
  const std::set<uint64_t> ended = std::exchange(found->second.asked, {});
  return {ended.begin(), ended.end()};
}

std::vector<uint64_t> TransferTable::lose(uint64_t receiver) {
  Receiver& lost = receivers_[receiver];
  std::vector<uint64_t> ended;
  for (std::set<uint64_t>* part : {&lost.open, &lost.abandoned, &lost.asked}) {
    ended.insert(ended.end(), part->begin(), part->end());
    part->clear();
  }
  lost.lost = true;
  return ended;
}

bool TransferTable::contains(uint64_t receiver, uint64_t number) const {
  const auto found = receivers_.find(receiver);
  if (found == receivers_.end()) return false;
  const Receiver& to = found->second;
  return to.open.contains(number) || to.abandoned.contains(number) || to.asked.contains(number);
}

std::size_t TransferTable::open(uint64_t receiver) const {
  const auto found = receivers_.find(receiver);
  return found == receivers_.end() ? 0 : found->second.size();
}

std::size_t TransferTable::size() const {
  std::size_t size = 0;
  for (const auto& [receiver, transfers] : receivers_) size += transfers.size();
  return size;
}

}  // namespace gradwire::rpc
