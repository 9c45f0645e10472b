#include "gradwire/tools/launch/rendezvous/transitions.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gradwire::rendezvous {
namespace {

bool room(const Record& record) {
  return static_cast<int>(record.participants.size()) < record.settings.max_nodes;
}

}  // namespace

Record first_record(const Member& me, const Settings& settings, absl::string_view run_id) {
  Record record{.origin = me.id, .run_id = std::string(run_id), .settings = settings};
  enter(record, me);
  return record;
}

const Member* find(const Record& record, absl::string_view id) {
  for (const std::vector<Member>* members : {&record.participants, &record.waiting}) {
    for (const Member& member : *members) {
      if (member.id == id) return &member;
    }
  }
  return nullptr;
}

const Member* find_rank(const Record& record, const Member& me) {
  if (!me.rank) return nullptr;
  for (const std::vector<Member>* members : {&record.participants, &record.waiting}) {
    for (const Member& member : *members) {
      if (member.rank == me.rank && member.id != me.id) return &member;
    }
  }
  return nullptr;
}

int count_nodes(const Record& record) {
  return static_cast<int>(record.participants.size() + record.waiting.size());
}

void enter(Record& record, Member member) {
  member.ready = true;
  member.done = false;
  const bool takes_part = record.phase == Phase::kJoining && room(record);
  (takes_part ? record.participants : record.waiting).push_back(std::move(member));
}

void remove(Record& record, absl::string_view id) {
  const auto is_it = [id](const Member& member) { return member.id == id; };
  std::erase_if(record.participants, is_it);
  std::erase_if(record.waiting, is_it);
}

// In the order of arrival, so that no node waits indefinitely.
void admit_waiting(Record& record) {
  std::size_t next = 0;
  for (; next < record.waiting.size() && room(record); ++next) {
    record.participants.push_back(std::move(record.waiting[next]));
  }
  record.waiting.erase(record.waiting.begin(), record.waiting.begin() + next);
}

// A round in which a node is done is about to end, so it is not interrupted for a new node.
bool could_grow(const Record& record) {
  return !record.waiting.empty() && room(record) &&
         std::none_of(record.participants.begin(), record.participants.end(),
                      [](const Member& member) { return member.done; });
}

bool may_run(const Record& record) {
  return static_cast<int>(record.participants.size()) >= record.settings.min_nodes &&
         std::all_of(record.participants.begin(), record.participants.end(),
                     [](const Member& member) { return member.ready; });
}

void run(Record& record) {
  record.phase = Phase::kRunning;
  record.call_off = 0;
  if (!record.settings.fixed_ranks) return;
  std::sort(record.participants.begin(), record.participants.end(),
            [](const Member& a, const Member& b) { return a.rank < b.rank; });
}

// All participants must report again that their workers have ended. `complete`: no node is missing, so the
// next round need not wait for others (call_off).
void begin_next(Record& record, bool complete) {
  record.phase = Phase::kJoining;
  ++record.round;
  record.store.reset();
  for (Member& member : record.participants) member.ready = member.done = false;
  const int count = static_cast<int>(record.participants.size());
  record.call_off = complete && count >= record.settings.min_nodes ? count : 0;
  admit_waiting(record);
}

// The failure stays in the record, so that every node can print why the round ended.
void fail(Record& record, Failure failure, bool complete) {
  if (record.restarts_used >= record.settings.max_restarts) return close_failed(record, std::move(failure));
  ++record.restarts_used;
  record.failure = std::move(failure);
  begin_next(record, complete);
}

void close_failed(Record& record, Failure failure) {
  record.phase = Phase::kClosed;
  record.call_off = 0;
  record.failure = std::move(failure);
}

void close_if_done(Record& record) {
  const auto done = [](const Member& member) { return member.done; };
  if (!std::all_of(record.participants.begin(), record.participants.end(), done)) return;
  record.phase = Phase::kClosed;
  record.failure.reset();
  record.succeeded = true;
}

}  // namespace gradwire::rendezvous
