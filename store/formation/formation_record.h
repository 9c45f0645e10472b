#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/store/formation/rank_claim.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::store {

// Outcome of a group's formation: complete, or refused with a reason. All processes that wait for the group
// read it.
struct FormationResult {
  // OK if the group is complete; otherwise why it was refused.
  absl::Status refusal;
  // Largest world size that a process of a refused group asked for.
  int ranks = 0;
  // When the group was refused, in unix_seconds(), because other machines compare it.
  int64_t time = 0;

  bool complete() const { return refusal.ok(); }
  std::string text() const;
  // Parses text(). Returns nullopt for malformed or oversized text.
  static std::optional<FormationResult> read(const std::string& text);
};

// The keys in a store that describe the groups formed there. Groups form one after the other and are numbered
// from 0.
//
//   current                 number of the current (last) group; 0 if the key is missing
//   NUMBER/world_size       world size of the first process that arrived
//   NUMBER/arrivals         number of processes that arrived without a rank
//   NUMBER/rank/R           RankClaim of the process that has rank R; empty after the rank was given back
//   NUMBER/waiting/R        the claim of the process that waits for the others as rank R
//   NUMBER/result           the FormationResult; written once
//   NUMBER/acknowledged/R   set when rank R has read that the group was refused
//
// All methods but open_current() concern the group that was current at that call. They return by the
// deadline. Errors: those of the store; FailedPrecondition for contents that no member of a group can have
// written.
class FormationRecord {
 public:
  struct Member {
    int rank = 0;
    RankClaim claim;
  };

  // `deadline` is a time of Clock::system().
  FormationRecord(Store& store, absl::Time deadline) : store_(store), deadline_(deadline) {}

  // Reads the number of the current group.
  absl::Status open_current();
  int64_t number() const { return number_; }
  // Makes the next group current, unless another process has already done so.
  absl::Status begin_next();

  // Returns nullopt if the group has no result yet.
  absl::StatusOr<std::optional<FormationResult>> result();
  // Returns nullopt if the group has no result within `timeout`.
  absl::StatusOr<std::optional<FormationResult>> wait_for_result(absl::Duration timeout);
  // Writes the group's result unless it has one. Returns the result that is then in the store.
  absl::StatusOr<FormationResult> decide(const FormationResult& result);

  // Proposes a world size. Returns the size in the store, which is that of the first process that arrived. A
  // size whose process has gone is replaced by passing it as `old`.
  absl::StatusOr<std::string> propose_size(int size, const std::string& old);
  absl::StatusOr<int> size();
  absl::StatusOr<int64_t> count_arrival();

  // Assigns the rank to `claim`. Returns nullopt on success, else the claim that holds the rank. A rank that
  // was given back, or whose process has ended, can be taken.
  absl::StatusOr<std::optional<RankClaim>> take(int rank, const RankClaim& claim);
  // Assigns the rank to `claim` if no process has ever claimed it. Returns whether it did.
  absl::StatusOr<bool> take_if_new(int rank, const RankClaim& claim);
  // Returns the claim of the process that holds the rank; nullopt if the rank is free or that process has
  // ended.
  absl::StatusOr<std::optional<RankClaim>> find_holder(int rank);
  // Returns the first member, among the ranks below `size`, whose world size is `size`.
  absl::StatusOr<std::optional<Member>> find_rank_with_size(int size);

  absl::Status set_waiting(int rank, const RankClaim& claim);
  // Whether the ranks first..end-1 all wait. Takes one request if some do not, more if all do.
  absl::StatusOr<bool> all_waiting(int first, int end);
  // Returns those of the ranks first..end-1 that do not wait. Takes one or two requests per rank.
  absl::StatusOr<std::vector<int>> find_missing(int first, int end);

  // Notes that the rank has read that the group was refused.
  void acknowledge(int rank);
  // Waits, for at most a second, until the ranks 0..size-1 have acknowledged the refusal.
  void wait_until_acknowledged(int size);

  // The error for contents that no member of a group can have written.
  absl::Status invalid_record() const;
  // The time until the deadline.
  absl::Duration left() const;

 private:
  std::string key(const char* name) const;
  std::string key(const char* name, int rank) const;
  // Returns the key's value, or an empty string if the key is missing. Fails if the store does not answer:
  // that does not mean that the key is missing.
  absl::StatusOr<std::string> read_key(const std::string& key);
  absl::StatusOr<FormationResult> read(const absl::StatusOr<std::string>& text) const;

  Store& store_;
  const absl::Time deadline_;
  int64_t number_ = 0;
};

// Parses the size that propose_size() returned. Returns nullopt if the text is not a valid size.
std::optional<int> read_size(const std::string& text);

// Gives back a rank of group `number`, if `claim` still holds it. Does nothing if the store cannot be
// reached.
void give_back(Store& store, int64_t number, int rank, const std::string& claim);

}  // namespace gradwire::store
