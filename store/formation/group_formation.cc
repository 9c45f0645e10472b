#include "gradwire/store/formation/group_formation.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/store/formation/formation_record.h"
#include "gradwire/store/formation/rank_claim.h"

namespace gradwire::store {
namespace {

using Member = FormationRecord::Member;

// Limit of attempts to join while the groups in the store keep changing.
constexpr int kJoinTries = 1000;
// Interval at which a waiting process checks again whether all ranks wait. It must: the process that arrived
// last may have lost its connection before it could write the result.
constexpr absl::Duration kRecheckInterval = absl::Seconds(5);
// How long a process that arrives late is still given the reason of a refusal. A process that arrives after
// that belongs to another job.
constexpr absl::Duration kRefusalLifetime = absl::Seconds(30);

// One process's attempt to join a group; run() makes it.
//
// A group that does not have a result yet is joined in these steps. Each step is one atomic operation on the
// store, and another process may act between any two of them.
// 1. Claim a rank (not in an open group). If the rank is taken, refuse the group.
// 2. Read the result again: the claimed rank may be one that was given back in a group that is over.
// 3. Agree on the world size. If a member has another one, refuse the group.
// 4. Note that this rank waits, and wait for the result. A process that sees all ranks waiting writes it.
// If the group is no longer the current one, the process withdraws its claim and tries the next group.
class JoinAttempt {
 public:
  JoinAttempt(Store& store, const GroupFormation& request)
      : store_(store),
        record_(store, request.deadline),
        request_(request),
        self_(RankClaim::make(request.world_size)),
        rank_(request.rank) {}

  // Each round is one attempt to join the current group.
  absl::StatusOr<GroupMembership> run() {
    for (int tries = 0; tries < kJoinTries; ++tries) {
      GRADWIRE_RETURN_IF_ERROR(record_.open_current());
      Found membership = join();
      // Otherwise the other processes would take this one for a member that waits.
      if (!membership.ok() && !refused_) withdraw();
      GRADWIRE_RETURN_IF_ERROR(membership.status());
      if (membership->has_value()) return **std::move(membership);
      if (record_.left() <= absl::ZeroDuration()) break;
    }
    return absl::DeadlineExceededError(
        absl::StrCat("could not join a group in the ", store_.description(), ": its groups kept changing"));
  }

 private:
  // The new membership; nullopt if the group is no longer current, or became complete without this process.
  using Found = absl::StatusOr<std::optional<GroupMembership>>;
  // False has the same meaning as nullopt in Found: try the next group.
  using Done = absl::StatusOr<bool>;

  bool is_open() const { return request_.world_size == 0; }

  Found join() {
    GRADWIRE_ASSIGN_OR_RETURN(const std::optional<FormationResult> result, record_.result());
    if (result.has_value()) return result->complete() ? join_complete() : join_refused(*result);
    if (!is_open()) {
      GRADWIRE_ASSIGN_OR_RETURN(const bool claimed, claim());
      if (!claimed) return std::nullopt;
      // The rank may have been given back in a group that was completed and left in the meantime.
      GRADWIRE_ASSIGN_OR_RETURN(const std::optional<FormationResult> since, record_.result());
      if (since.has_value()) {
        withdraw();
        return std::nullopt;
      }
    }
    GRADWIRE_ASSIGN_OR_RETURN(const bool agreed, agree_on_size());
    if (!agreed) return std::nullopt;
    return is_open() ? decide(FormationResult()) : wait();
  }

  Done claim() {
    if (request_.rank >= 0) {
      GRADWIRE_ASSIGN_OR_RETURN(const std::optional<RankClaim> holder, take(request_.rank));
      if (!holder.has_value()) return true;
      return refuse({absl::AlreadyExistsError(absl::StrCat("rank ", request_.rank,
                                                           " is claimed by two processes: ", holder->name(),
                                                           ", and ", self_.name())),
                     request_.world_size});
    }
    // Ranks are tried from the order of arrival on; then the ranks that were given back.
    GRADWIRE_ASSIGN_OR_RETURN(const int64_t arrived, record_.count_arrival());
    const int first = static_cast<int>(std::clamp<int64_t>(arrived - 1, 0, request_.world_size - 1));
    std::optional<RankClaim> holder;
    for (int i = 0; i < request_.world_size; ++i) {
      GRADWIRE_ASSIGN_OR_RETURN(holder, take((first + i) % request_.world_size));
      if (!holder.has_value()) return true;
    }
    return full(*holder);
  }

  absl::StatusOr<std::optional<RankClaim>> take(int rank) {
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<RankClaim> holder, record_.take(rank, self_));
    if (!holder.has_value()) {
      rank_ = rank;
      claimed_ = true;
    }
    return holder;
  }

  Done agree_on_size() {
    std::string old;
    for (int tries = 0; tries < kJoinTries; ++tries) {
      GRADWIRE_ASSIGN_OR_RETURN(std::string proposed, record_.propose_size(request_.world_size, old));
      const std::optional<int> size = read_size(proposed);
      if (size == request_.world_size) return true;
      if (size == 0) {
        // An open group is complete as soon as its first member arrives.
        GRADWIRE_RETURN_IF_ERROR(record_.decide(FormationResult()).status());
        return withdraw();
      }
      if (size.has_value()) {
        GRADWIRE_ASSIGN_OR_RETURN(const std::optional<Member> other, record_.find_rank_with_size(*size));
        if (other.has_value())
          return refuse({sizes_differ(other), std::max<int>(*size, request_.world_size)});
      }
      // The process that proposed this size has gone: replace the size.
      old = std::move(proposed);
    }
    return record_.invalid_record();
  }

  // Waits for the group's result. This process has its rank.
  Found wait() {
    GRADWIRE_RETURN_IF_ERROR(record_.set_waiting(rank_, self_));
    Progress progress(request_.progress);
    while (record_.left() > absl::ZeroDuration()) {
      GRADWIRE_ASSIGN_OR_RETURN(const bool all, record_.all_waiting(0, request_.world_size));
      if (all) return decide(FormationResult());
      progress.update([&] { return describe_wait(); });
      GRADWIRE_ASSIGN_OR_RETURN(
          const std::optional<FormationResult> result,
          record_.wait_for_result(std::min({kRecheckInterval, record_.left(), progress.until_next()})));
      if (result.has_value()) {
        if (result->complete()) progress.finish("all processes have arrived");
        return conclude(*result);
      }
    }
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> missing, record_.find_missing(0, request_.world_size));
    if (missing.empty()) return decide(FormationResult());
    return decide({did_not_arrive(missing), request_.world_size});
  }

  Found decide(const FormationResult& result) {
    GRADWIRE_ASSIGN_OR_RETURN(const FormationResult given, record_.decide(dated(result)));
    return conclude(given);
  }

  // Returns what the group's result means for this process, which has waited for it.
  Found conclude(const FormationResult& result) {
    if (!result.complete()) return report_refusal(result);
    if (is_open()) return open_membership();
    return GroupMembership{.rank = rank_, .number = record_.number(), .claim = self_.text()};
  }

  Found open_membership() {
    if (rank_ < 0) {
      GRADWIRE_ASSIGN_OR_RETURN(const int64_t arrived, record_.count_arrival());
      rank_ = static_cast<int>(arrived - 1);
    }
    return GroupMembership{.rank = rank_, .number = record_.number(), .claim = ""};
  }

  // Joins a group that was refused. A process that the group missed gets the reason of the refusal; other
  // processes join the next group. After a timeout of the group all processes join the next one.
  Found join_refused(const FormationResult& result) {
    const bool is_old = std::abs(unix_seconds() - result.time) > absl::ToInt64Seconds(kRefusalLifetime);
    if (is_open() || is_old || absl::IsDeadlineExceeded(result.refusal)) return join_next();
    bool was_missing = false;
    if (request_.rank >= 0) {
      GRADWIRE_ASSIGN_OR_RETURN(was_missing, record_.take_if_new(request_.rank, self_));
      claimed_ = was_missing;
    } else {
      GRADWIRE_ASSIGN_OR_RETURN(const int64_t arrived, record_.count_arrival());
      was_missing = arrived <= result.ranks;
    }
    return was_missing ? Found(report_refusal(result)) : join_next();
  }

  Found join_complete() {
    GRADWIRE_ASSIGN_OR_RETURN(const int size, record_.size());
    if (size == 0) return is_open() ? open_membership() : Found(sizes_differ(std::nullopt));
    std::optional<Member> member;
    for (int rank = 0; rank < size; ++rank) {
      GRADWIRE_ASSIGN_OR_RETURN(std::optional<RankClaim> holder, record_.find_holder(rank));
      // The process may have any rank in it: a group that goes on without some of its members renumbers the
      // others.
      const bool again = request_.again && holder.has_value() && holder->is_of_this_process();
      if (!holder.has_value() || again) return join_next();
      if (rank == 0 || rank == request_.rank) member = {rank, *std::move(holder)};
    }
    if (size != request_.world_size) return sizes_differ(member);
    if (request_.rank < 0) return full(member->claim);
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", request_.rank, " of ", size, " is already taken by ", member->claim.name(),
                     " in a complete group; this is ", self_.name(),
                     "; if that process ended without leaving, use another group name or another store"));
  }

  Found join_next() {
    GRADWIRE_RETURN_IF_ERROR(record_.begin_next());
    return std::nullopt;
  }

  static FormationResult dated(FormationResult result) {
    result.time = unix_seconds();
    return result;
  }

  // Another process may have completed the group first. Its result counts, and this process tries the next
  // group.
  Done refuse(const FormationResult& result) {
    GRADWIRE_ASSIGN_OR_RETURN(const FormationResult given, record_.decide(dated(result)));
    if (given.complete()) return withdraw();
    return report_refusal(given);
  }

  absl::Status report_refusal(const FormationResult& result) {
    refused_ = true;
    if (claimed_) record_.acknowledge(rank_);
    if (request_.may_end_store && !absl::IsDeadlineExceeded(result.refusal)) {
      record_.wait_until_acknowledged(std::max(result.ranks, request_.world_size));
    }
    return result.refusal;
  }

  // Gives up the claim on the group, if any. Returns false, for the caller to return.
  bool withdraw() {
    if (claimed_) leave_group(store_, {.rank = rank_, .number = record_.number(), .claim = self_.text()});
    claimed_ = false;
    rank_ = request_.rank;
    return false;
  }

  // "rank 3", "ranks 3, 7".
  static std::string list_ranks(const std::vector<int>& ranks) {
    constexpr std::size_t kShown = 16;
    const auto end = ranks.begin() + static_cast<int64_t>(std::min(ranks.size(), kShown));
    return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks.begin(), end, ", "),
                        ranks.size() > kShown ? absl::StrCat(" and ", ranks.size() - kShown, " more") : "");
  }

  // The state of the wait, for a report. In a log only the waiting process with the lowest rank reports it:
  // the others would write the same. To find that out takes three requests in most cases.
  std::optional<ProgressState> describe_wait() {
    for (int rank = 0; rank < rank_ && !request_.progress.output->can_move(); ++rank) {
      const absl::StatusOr<bool> waits = record_.all_waiting(rank, rank + 1);
      if (!waits.ok() || *waits) return std::nullopt;
    }
    const absl::StatusOr<std::vector<int>> missing = record_.find_missing(0, request_.world_size);
    if (!missing.ok() || missing->empty()) return std::nullopt;
    const int arrived = request_.world_size - static_cast<int>(missing->size());
    return ProgressState{
        .text = absl::StrCat(arrived, " of ", request_.world_size, " processes have arrived in the ",
                             store_.description(), ", waiting for ", list_ranks(*missing)),
        .done = arrived,
        .total = request_.world_size};
  }

  absl::Status did_not_arrive(const std::vector<int>& missing) const {
    return absl::DeadlineExceededError(
        absl::StrCat(list_ranks(missing), " did not arrive (the world size is ", request_.world_size, ")"));
  }

  // `other` is nullopt if this process has a world size but the group is open.
  absl::Status sizes_differ(const std::optional<Member>& other) const {
    const std::string self = rank_ < 0 ? "this process" : absl::StrCat("rank ", rank_);
    const std::string theirs =
        other.has_value()
            ? absl::StrCat("rank ", other->rank, " reports world_size=", other->claim.world_size, " (",
                           other->claim.name(), ")")
            : "the group is open, with world_size=0";
    return absl::InvalidArgumentError(absl::StrCat("world size mismatch: ", theirs, ", ", self,
                                                   " reports world_size=", request_.world_size, " (",
                                                   self_.name(), ")"));
  }

  absl::Status full(const RankClaim& holder) const {
    return absl::FailedPreconditionError(absl::StrCat("the group is full: all of its ", request_.world_size,
                                                      " ranks are taken, one by ", holder.name(),
                                                      "; this is ", self_.name()));
  }

  Store& store_;
  FormationRecord record_;
  const GroupFormation request_;
  const RankClaim self_;
  // State in the current group.
  int rank_;
  bool claimed_ = false;
  // Whether the group was refused. Then the claim stays, so that no other process claims the same rank of it.
  bool refused_ = false;
};

}  // namespace

absl::StatusOr<GroupMembership> form_group(Store& store, const GroupFormation& request) {
  return JoinAttempt(store, request).run();
}

void leave_group(Store& store, const GroupMembership& membership) {
  if (!membership.claim.empty()) give_back(store, membership.number, membership.rank, membership.claim);
}

}  // namespace gradwire::store
