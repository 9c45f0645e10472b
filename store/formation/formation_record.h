#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/store/formation/rank_claim.h"
#include "gradwire/store/store.h"

namespace gradwire::store {

// What the processes hear that wait for a group to be complete.
struct FormationResult {
  // OK: it is.
  absl::Status refusal;
  // How many it was meant to have, by whoever said the most.
  int ranks = 0;
  // When the group was refused, in unix_seconds(), since other machines compare it.
  int64_t time = 0;

  bool complete() const { return refusal.ok(); }
  std::string text() const;
  // None for what is no result; bounded.
  static std::optional<FormationResult> read(const std::string& text);
};

// What a store holds of the groups that form in it one after the other, and are numbered:
//
//   current             the number of the last one; missing: 0
//   NUMBER/world_size   what the first who came says
//   NUMBER/arrivals     how many have come without a rank
//   NUMBER/rank/R       whose the rank is, a RankClaim; empty when it was given back
//   NUMBER/here/R       set when the rank waits for the others
//   NUMBER/result      how that ended, once: a FormationResult
//   NUMBER/heard/R      set when the rank has heard that there will be no group
//
// All calls but open_current() are about the group that was the current one then. They end by the
// deadline, with the store's errors, and with FailedPrecondition for what members of a group cannot have
// written.
class FormationRecord {
 public:
  struct Member {
    int rank = 0;
    RankClaim claim;
  };

  // `deadline`: of Clock::system().
  FormationRecord(Store& store, absl::Time deadline) : store_(store), deadline_(deadline) {}

  absl::Status open_current();
  int64_t number() const { return number_; }
  // Makes the next group the current one, if nobody has done so.
  absl::Status begin_next();

  // None: there is none yet.
  absl::StatusOr<std::optional<FormationResult>> result();
  // None: not within this time.
  absl::StatusOr<std::optional<FormationResult>> wait_for_result(absl::Duration timeout);
  // The first one counts, and is returned.
  absl::StatusOr<FormationResult> decide(const FormationResult& result);

  // Says the world size. The result is what the first who came says; a size that nobody says any more is put
  // right by passing it as `old`.
  absl::StatusOr<std::string> propose_size(int size, const std::string& old);
  absl::StatusOr<int> size();
  absl::StatusOr<int64_t> count_arrival();

  // Makes the rank `claim`'s. None: it is; else whose it is. A rank that was given back, or whose process has
  // ended, may be taken.
  absl::StatusOr<std::optional<RankClaim>> take(int rank, const RankClaim& claim);
  // Whether nobody has come as this rank.
  absl::StatusOr<bool> take_if_new(int rank, const RankClaim& claim);
  // None: nobody, or a process that has ended.
  absl::StatusOr<std::optional<RankClaim>> find_holder(int rank);
  absl::StatusOr<std::optional<Member>> find_rank_with_size(int size);

  absl::Status set_here(int rank);
  // Whether the ranks 0..size-1 all wait: one question unless they do.
  absl::StatusOr<bool> all_here(int size);
  // Which do not: one or two questions for each.
  absl::StatusOr<std::vector<int>> find_missing(int size);

  void acknowledge(int rank);
  // Until the ranks 0..size-1 have heard, but not long.
  void wait_until_acknowledged(int size);

  absl::Status invalid_record() const;
  absl::Duration left() const;

 private:
  std::string key(const char* name) const;
  std::string key(const char* name, int rank) const;
  // Empty when the key is missing. A store that has not answered is an error, not a key that is missing.
  absl::StatusOr<std::string> read_key(const std::string& key);
  absl::StatusOr<FormationResult> read(const absl::StatusOr<std::string>& text) const;

  Store& store_;
  const absl::Time deadline_;
  int64_t number_ = 0;
};

// The size that propose_size() returned; none when the text is no size.
std::optional<int> read_size(const std::string& text);

// Gives back a rank of the group with that number. A store that cannot be reached is ignored.
void give_back(Store& store, int64_t number, int rank, const std::string& claim);

}  // namespace gradwire::store
