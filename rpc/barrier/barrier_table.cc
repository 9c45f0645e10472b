#include "gradwire/rpc/barrier/barrier_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {

void BarrierTable::end(Barrier& barrier, const absl::Status& status, Answers& answers) {
  barrier.result = status;
  for (auto& [member, ticket] : barrier.arrived) {
    if (ticket == 0) continue;
    tickets_.erase(ticket);
    answers.push_back({std::exchange(ticket, 0), status});
  }
}

// A member that has come to a later barrier has the answers of the earlier ones, or does not want them.
void BarrierTable::forget_old(const Members& members, Barriers& barriers) {
  std::map<uint64_t, uint64_t> newest;
  for (const auto& [number, barrier] : barriers) {
    for (const auto& [member, ticket] : barrier.arrived) newest[member] = number;
  }
  if (newest.size() < members.size()) return;
  uint64_t oldest = newest.begin()->second;
  for (const auto& [member, number] : newest) oldest = std::min(oldest, number);
  barriers.erase(barriers.begin(), barriers.lower_bound(oldest));
}

BarrierTable::Answers BarrierTable::arrive(const Members& members, uint64_t number, uint64_t from,
                                           uint64_t ticket) {
  Answers answers;
  if (lists_.size() >= kMostLists && !lists_.contains(members)) {
    answers.push_back({ticket, absl::ResourceExhaustedError(
                                   absl::StrCat("this worker leads barriers of ", lists_.size(),
                                                " different lists of workers, its limit; use fewer lists"))});
    return answers;
  }
  Barriers& barriers = lists_[members];
  const auto open = static_cast<std::size_t>(std::count_if(
      barriers.begin(), barriers.end(), [](const auto& entry) { return !entry.second.result.has_value(); }));
  if (barriers.size() >= 2 * kMostOpen || (open >= kMostOpen && !barriers.contains(number))) {
    answers.push_back({ticket, absl::ResourceExhaustedError(absl::StrCat(
                                   "too many barriers of these workers have not ended: got more than ",
                                   kMostOpen, "; a member has not come to any of them"))});
    return answers;
  }
  Barrier& barrier = barriers[number];
  auto [place, is_first] = barrier.arrived.try_emplace(from, 0);
  if (!is_first && place->second != 0) {
    answers.push_back({place->second, absl::CancelledError("the worker has come to the barrier again")});
    tickets_.erase(place->second);
  }
  if (barrier.result.has_value()) {
    place->second = 0;
    answers.push_back({ticket, *barrier.result});
  } else {
    place->second = ticket;
    tickets_.emplace(ticket, Place{members, number, from});
    if (barrier.arrived.size() == members.size()) end(barrier, absl::OkStatus(), answers);
  }
  forget_old(members, barriers);
  return answers;
}

BarrierTable::Members BarrierTable::missing(uint64_t ticket) const {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return {};
  const Place& place = found->second;
  const Barrier& barrier = lists_.at(place.members).at(place.number);
  Members missing;
  for (const uint64_t member : place.members) {
    if (!barrier.arrived.contains(member)) missing.push_back(member);
  }
  return missing;
}

BarrierTable::Answers BarrierTable::give_up(uint64_t ticket, absl::Status own, absl::Status others) {
  Answers answers;
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return answers;
  const Place place = found->second;
  tickets_.erase(found);
  Barrier& barrier = lists_.at(place.members).at(place.number);
  barrier.arrived.at(place.from) = 0;
  answers.push_back({ticket, std::move(own)});
  end(barrier, others, answers);
  return answers;
}

BarrierTable::Answers BarrierTable::lose(uint64_t member, const absl::Status& reason) {
  Answers answers;
  for (auto list = lists_.begin(); list != lists_.end();) {
    if (!std::binary_search(list->first.begin(), list->first.end(), member)) {
      ++list;
      continue;
    }
    for (auto& [number, barrier] : list->second) end(barrier, reason, answers);
    list = lists_.erase(list);
  }
  return answers;
}

BarrierTable::Answers BarrierTable::end_all(const absl::Status& reason) {
  Answers answers;
  for (auto& [members, barriers] : lists_) {
    for (auto& [number, barrier] : barriers) end(barrier, reason, answers);
  }
  lists_.clear();
  return answers;
}

}  // namespace gradwire::rpc
