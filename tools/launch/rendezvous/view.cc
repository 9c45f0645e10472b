#include "gradwire/tools/launch/rendezvous/view.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tools/launch/rendezvous/transitions.h"

namespace gradwire::rendezvous {

// A store that was restarted is empty, or another job may use it by now. The record of this job cannot come
// back, so both are errors. An older version is the late answer to an earlier call and must not undo what
// was read since.
absl::Status View::read(std::optional<absl::string_view> bytes) {
  if (!bytes) {
    if (record_) return absl::UnavailableError("the store has lost the job's record");
    absent_ = true;
    return absl::OkStatus();
  }
  if (record_ && *bytes == bytes_) return absl::OkStatus();
  absl::StatusOr<Record> record = decode(*bytes);
  if (!record.ok()) return record.status();
  if (record_ && record->origin != record_->origin) {
    return absl::UnavailableError("the store has lost the job's record: another job now uses the store");
  }
  // An outdated answer, which arrived after a later one.
  if (record_ && record->version < record_->version) return absl::OkStatus();
  bytes_ = std::string(*bytes);
  record_ = *std::move(record);
  locate();
  return absl::OkStatus();
}

void View::change_id() {
  entered_ = false;
  me_.id = absl::StrCat(first_id_, ".", ++id_changes_);
  locate();
}

void View::locate() {
  group_rank_ = -1;
  for (std::size_t i = 0; i < record_->participants.size(); ++i) {
    if (record_->participants[i].id == me_.id) group_rank_ = static_cast<int>(i);
  }
  waits_ = !takes_part() && find(*record_, me_.id) != nullptr;
  if (!outside()) entered_ = ever_entered_ = true;
}

std::vector<std::string> View::watched(int max_count) const {
  std::vector<std::string> chosen;
  // A node that cannot enter because another has its rank watches the other nodes as well: all nodes in the
  // record may be dead.
  const Member* other = outside() && !entered_ ? find_rank(*record_, me_) : nullptr;
  if (outside() && other == nullptr) return chosen;
  if (other != nullptr) chosen.push_back(other->id);
  // Every node watches a few successors only, so the number of beats that are read grows with the number of
  // nodes and not with its square. When lost successors are removed from the record, the next ones are
  // watched.
  std::vector<const Member*> ring;
  std::size_t first = 0;
  for (const std::vector<Member>* members : {&record_->participants, &record_->waiting}) {
    for (const Member& member : *members) {
      if (member.id == me_.id) {
        first = ring.size();
      } else if (!member.done && &member != other) {
        ring.push_back(&member);
      }
    }
  }
  for (std::size_t i = 0; i < ring.size() && static_cast<int>(i) < max_count; ++i) {
    chosen.push_back(ring[(first + i) % ring.size()]->id);
  }
  return chosen;
}

}  // namespace gradwire::rendezvous
