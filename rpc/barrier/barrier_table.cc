#include "gradwire/rpc/barrier/barrier_table.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {

BarrierTable::Lists::iterator BarrierTable::find_list(const Members& members) {
  if (const auto found = lists_.find(members); found != lists_.end()) return found;
  if (lists_.size() >= kMostLists) {
    if (idle_.empty()) return lists_.end();
    lists_.erase(idle_.begin()->second);
    idle_.erase(idle_.begin());
  }
  const auto list = lists_.emplace(members, List()).first;
  list->second.idle_since = next_idle_++;
  idle_.emplace(list->second.idle_since, list);
  return list;
}

void BarrierTable::answer(uint64_t ticket, absl::Status status, Answers& answers) {
  const auto place = tickets_.find(ticket);
  if (place == tickets_.end()) return;
  waiting_of_.remove(place->second.from);
  tickets_.erase(place);
  answers.push_back({ticket, std::move(status)});
}

void BarrierTable::end(Lists::iterator list, uint64_t number, const absl::Status& status, Answers& answers) {
  List& barriers = list->second;
  const auto barrier = barriers.open.find(number);
  if (barrier == barriers.open.end()) return;
  for (const auto& [member, ticket] : barrier->second) answer(ticket, status, answers);
  barriers.open.erase(barrier);
  barriers.results.emplace(number, status);
  if (barriers.results.size() > kMostResults) {
    const auto oldest = barriers.results.begin();
    barriers.forgotten_below = std::max(barriers.forgotten_below, oldest->first + 1);
    barriers.results.erase(oldest);
  }
  if (!barriers.open.empty()) return;
  barriers.idle_since = next_idle_++;
  idle_.emplace(barriers.idle_since, list);
}

BarrierTable::Answers BarrierTable::arrive(const Members& members, uint64_t number, uint64_t from,
                                           uint64_t ticket) {
  Answers answers;
  const auto list = find_list(members);
  if (list == lists_.end()) {
    answers.push_back({ticket, absl::ResourceExhaustedError(
                                   absl::StrCat("this worker leads barriers of ", lists_.size(),
                                                " different lists of workers that have not ended, its limit; "
                                                "wait for fewer at a time"))});
    return answers;
  }
  List& barriers = list->second;
  if (const auto result = barriers.results.find(number); result != barriers.results.end()) {
    answers.push_back({ticket, result->second});
    return answers;
  }
  auto barrier = barriers.open.find(number);
  if (barrier == barriers.open.end() && number < barriers.forgotten_below) {
    answers.push_back({ticket, absl::DeadlineExceededError(absl::StrCat(
                                   "barrier ", number, " of these workers has ended, and at least ",
                                   kMostResults, " later ones; this worker came too late"))});
    return answers;
  }
  // A repetition. Its place is free before the limit is checked.
  if (barrier != barriers.open.end()) {
    if (const auto first = barrier->second.find(from); first != barrier->second.end()) {
      answer(first->second, absl::CancelledError("the worker has come to the barrier again"), answers);
      barrier->second.erase(first);
    }
  }
  if (const std::size_t waiting = waiting_of_.count(from); waiting >= kMostWaiting) {
    answers.push_back(
        {ticket, absl::ResourceExhaustedError(absl::StrCat("too many barriers: the worker waits for ",
                                                           waiting, " that this worker leads, its limit"))});
    return answers;
  }
  if (barrier == barriers.open.end()) {
    if (barriers.open.empty()) idle_.erase(barriers.idle_since);
    barrier = barriers.open.try_emplace(number).first;
  }
  barrier->second.emplace(from, ticket);
  tickets_.emplace(ticket, Entry{list, number, from});
  waiting_of_.add(from);
  if (barrier->second.size() == members.size()) end(list, number, absl::OkStatus(), answers);
  return answers;
}

BarrierTable::Members BarrierTable::missing(uint64_t ticket) const {
  Members missing;
  const auto place = tickets_.find(ticket);
  if (place == tickets_.end()) return missing;
  const auto& [members, barriers] = *place->second.list;
  const auto barrier = barriers.open.find(place->second.number);
  for (const uint64_t member : members) {
    if (barrier == barriers.open.end() || !barrier->second.contains(member)) missing.push_back(member);
  }
  return missing;
}

BarrierTable::Answers BarrierTable::give_up(uint64_t ticket, absl::Status own, absl::Status others) {
  Answers answers;
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return answers;
  const Entry place = found->second;
  answer(ticket, std::move(own), answers);
  end(place.list, place.number, others, answers);
  return answers;
}

BarrierTable::Lists::iterator BarrierTable::drop(Lists::iterator list, const absl::Status& reason,
                                                 Answers& answers) {
  while (!list->second.open.empty()) end(list, list->second.open.begin()->first, reason, answers);
  idle_.erase(list->second.idle_since);
  return lists_.erase(list);
}

BarrierTable::Answers BarrierTable::lose(uint64_t member, const absl::Status& reason) {
  Answers answers;
  for (auto list = lists_.begin(); list != lists_.end();) {
    const bool has = std::binary_search(list->first.begin(), list->first.end(), member);
    list = has ? drop(list, reason, answers) : std::next(list);
  }
  return answers;
}

BarrierTable::Answers BarrierTable::end_all(const absl::Status& reason) {
  Answers answers;
  for (auto list = lists_.begin(); list != lists_.end();) list = drop(list, reason, answers);
  return answers;
}

}  // namespace gradwire::rpc
