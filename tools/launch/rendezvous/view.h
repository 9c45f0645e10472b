#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {

// The record as this node has last read it, and the node's own position in it. Not thread-safe.
class View {
 public:
  explicit View(Member me) : me_(std::move(me)), first_id_(me_.id) {}

  // Takes the record as it was read; nullopt if the key is missing. An outdated answer is ignored.
  // Unavailable: the store has lost the record, or has the record of another job. InvalidArgument: see
  // decode().
  absl::Status read(std::optional<absl::string_view> bytes);
  // Gives the node a new id after it was removed. It then continues like a node that has never been in the
  // record.
  void change_id();

  // The node under its current id.
  const Member& me() const { return me_; }
  // Whether the store was read and had no record yet.
  bool absent() const { return absent_; }
  // The record; nullptr before it was read.
  const Record* record() const { return record_ ? &*record_ : nullptr; }
  // The bytes of record().
  const std::string& bytes() const { return bytes_; }
  // The position among the participants; -1 if the node is not a participant.
  int group_rank() const { return group_rank_; }
  bool takes_part() const { return group_rank_ >= 0; }
  bool outside() const { return group_rank_ < 0 && !waits_; }
  // Whether the node has been in the record under its current id (entered) or under any id (ever_entered).
  bool entered() const { return entered_; }
  bool ever_entered() const { return ever_entered_; }

  // Ids of the nodes whose beats this node watches: the next `max_count` nodes in the ring of all nodes in
  // the record, and the node that has this node's rank, if that keeps this node from entering. Empty for any
  // other node outside the record.
  std::vector<std::string> watched(int max_count) const;

 private:
  void locate();

  Member me_;
  const std::string first_id_;
  int id_changes_ = 0;

  // The record as read, and decoded.
  std::string bytes_;
  std::optional<Record> record_;
  bool absent_ = false;
  int group_rank_ = -1;
  bool waits_ = false;
  bool entered_ = false;
  bool ever_entered_ = false;
};

}  // namespace gradwire::rendezvous
