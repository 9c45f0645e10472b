#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {

// The record as this node has read it last, and the node's own place in it. Not thread-safe.
class View {
 public:
  explicit View(Member me) : me_(std::move(me)), first_id_(me_.id) {}

  // The record as it was read; nullopt: the key is missing. An answer that comes after a later one changes
  // nothing. Unavailable: the store has lost the record, or holds another in its place. InvalidArgument as
  // decode().
  absl::Status read(std::optional<absl::string_view> bytes);
  // The node was removed and goes on under a new id, as one that has never been in the record.
  void change_id();

  // The node under its current id.
  const Member& me() const { return me_; }
  // The store was read and had no record yet.
  bool absent() const { return absent_; }
  // nullptr before there is one.
  const Record* record() const { return record_ ? &*record_ : nullptr; }
  // The bytes of record().
  const std::string& bytes() const { return bytes_; }
  // The position among the participants; -1 for a node that does not take part.
  int group_rank() const { return group_rank_; }
  bool takes_part() const { return group_rank_ >= 0; }
  bool outside() const { return group_rank_ < 0 && !waits_; }
  // Whether the node has been in the record under its current id; under any.
  bool entered() const { return entered_; }
  bool ever_entered() const { return ever_entered_; }

  // Ids of the nodes whose beats this node watches: the next `most` in the ring of all that are in the
  // record, and the one that has this node's rank, if that keeps it from entering. None for another node
  // outside.
  std::vector<std::string> watched(int most) const;

 private:
  void locate();

  Member me_;
  const std::string first_id_;
  int id_changes_ = 0;

  // record_ is what bytes_ was decoded to.
  std::string bytes_;
  std::optional<Record> record_;
  bool absent_ = false;
  int group_rank_ = -1;
  bool waits_ = false;
  bool entered_ = false;
  bool ever_entered_ = false;
};

}  // namespace gradwire::rendezvous
