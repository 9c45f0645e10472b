#include "gradwire/rpc/device/arrived_transfers.h"

namespace gradwire::rpc {

void ArrivedTransfers::arrive(uint64_t sender, uint64_t number) {
  const auto refused = refused_.find(sender);
  const bool reclaimed = refused != refused_.end() && refused->second.contains(number);
  // An honest sender uses a number once. The first message with it decides.
  transfers_.try_emplace({sender, number}, reclaimed ? State::kRefused : State::kWaiting);
}

ArrivedTransfers::Read ArrivedTransfers::begin_read(uint64_t sender, uint64_t number) {
  // Messages that arrive after close() are not in the table.
  if (closed_) return Read::kRefused;
  const auto found = transfers_.find({sender, number});
  if (found == transfers_.end() || found->second == State::kReading) return Read::kUnknown;
  if (found->second == State::kRefused || lost_.contains(sender)) return Read::kRefused;
  found->second = State::kReading;
  ++reading_;
  return Read::kAllowed;
}

std::vector<uint64_t> ArrivedTransfers::end_read(uint64_t sender, uint64_t number) {
  transfers_.erase({sender, number});
  --reading_;
  std::vector<uint64_t> answers;
  for (auto& [token, waiting] : reclaims_) {
    if (waiting.sender == sender && waiting.reading.erase(number) > 0 && waiting.reading.empty())
      answers.push_back(token);
  }
  for (const uint64_t token : answers) reclaims_.erase(token);
  return answers;
}

bool ArrivedTransfers::drop(uint64_t sender, uint64_t number) {
  const auto found = transfers_.find({sender, number});
  if (found == transfers_.end() || found->second == State::kReading) return false;
  const bool reports = found->second == State::kWaiting && !lost_.contains(sender);
  transfers_.erase(found);
  return reports;
}

ArrivedTransfers::Reclaim ArrivedTransfers::reclaim(uint64_t sender, const std::vector<uint64_t>& numbers,
                                                    bool settled, uint64_t token) {
  Waiting waiting{sender, {}};
  std::vector<uint64_t> unknown;
  for (const uint64_t number : numbers) {
    const auto found = transfers_.find({sender, number});
    if (found == transfers_.end()) {
      unknown.push_back(number);
    } else if (found->second == State::kReading) {
      waiting.reading.insert(number);
    } else {
      found->second = State::kRefused;
    }
  }
  // A transfer that has ended here is refused too, which has no effect. Nothing of a lost sender is read, and
  // settle() is not called for it any more.
  if (!settled && !unknown.empty() && !lost_.contains(sender)) {
    absl::flat_hash_set<uint64_t>& refused = refused_[sender];
    if (refused.size() + unknown.size() > kMaxRefused) return Reclaim::kTooMany;
    refused.insert(unknown.begin(), unknown.end());
  }
  if (waiting.reading.empty()) return Reclaim::kAnswer;
  reclaims_.emplace(token, std::move(waiting));
  return Reclaim::kLater;
}

void ArrivedTransfers::settle(uint64_t sender) { refused_.erase(sender); }

std::vector<uint64_t> ArrivedTransfers::lose(uint64_t sender) {
  lost_.insert(sender);
  refused_.erase(sender);
  std::vector<uint64_t> answers;
  for (const auto& [token, waiting] : reclaims_) {
    if (waiting.sender == sender) answers.push_back(token);
  }
  for (const uint64_t token : answers) reclaims_.erase(token);
  return answers;
}

std::size_t ArrivedTransfers::remembered() const {
  std::size_t size = 0;
  for (const auto& [sender, numbers] : refused_) size += numbers.size();
  return size;
}

}  // namespace gradwire::rpc
