#include "gradwire/store/formation/group_formation.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/wall_clock.h"
#include "gradwire/store/formation/formation_record.h"
#include "gradwire/store/formation/rank_claim.h"

namespace gradwire::store {
namespace {

using Member = FormationRecord::Member;

// How often what is in the store may change while this process tries to find its place there.
constexpr int kTries = 1000;
// How often a process that waits makes sure that it waits for somebody: the store may not have answered
// whoever came last.
constexpr absl::Duration kLookAgain = absl::Seconds(5);
// How long those who come late hear why there was no group. Who comes after that belongs to another job.
constexpr absl::Duration kToldFor = absl::Seconds(30);

class Caller {
 public:
  Caller(Store& store, const GroupFormation& call)
      : store_(store),
        book_(store, call.deadline),
        call_(call),
        self_(RankClaim::make(call.world_size)),
        rank_(call.rank) {}

  absl::StatusOr<Place> run() {
    for (int tries = 0; tries < kTries; ++tries) {
      GRADWIRE_RETURN_IF_ERROR(book_.open_current());
      Found place = come();
      // Others must not take it for a process that waits.
      if (!place.ok() && !heard_) withdraw();
      GRADWIRE_RETURN_IF_ERROR(place.status());
      if (place->has_value()) return **std::move(place);
      if (book_.left() <= absl::ZeroDuration()) break;
    }
    return absl::DeadlineExceededError(
        absl::StrCat("groups in the ", store_.description(), " came and went, and this process found none"));
  }

 private:
  // A place; none: the group that was current is not any more, or has become complete without this process.
  using Found = absl::StatusOr<std::optional<Place>>;
  // False: as none.
  using Done = absl::StatusOr<bool>;

  bool is_open() const { return call_.world_size == 0; }

  Found come() {
    GRADWIRE_ASSIGN_OR_RETURN(const std::optional<FormationResult> result, book_.result());
    if (result.has_value()) return result->complete() ? come_to_complete() : come_to_refused(*result);
    if (!is_open()) {
      GRADWIRE_ASSIGN_OR_RETURN(const bool claimed, claim());
      if (!claimed) return std::nullopt;
      // The rank may be one that was given back since, in a group that is over.
      GRADWIRE_ASSIGN_OR_RETURN(const std::optional<FormationResult> since, book_.result());
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
    if (call_.rank >= 0) {
      GRADWIRE_ASSIGN_OR_RETURN(const std::optional<RankClaim> holder, take(call_.rank));
      if (!holder.has_value()) return true;
      return refuse({absl::AlreadyExistsError(absl::StrCat("two processes came as rank ", call_.rank, ": ",
                                                           holder->name(), ", and ", self_.name())),
                     call_.world_size});
    }
    // In order of arrival; then those that are free again.
    GRADWIRE_ASSIGN_OR_RETURN(const int64_t arrived, book_.count_arrival());
    const int first = static_cast<int>(std::clamp<int64_t>(arrived - 1, 0, call_.world_size - 1));
    std::optional<RankClaim> holder;
    for (int i = 0; i < call_.world_size; ++i) {
      GRADWIRE_ASSIGN_OR_RETURN(holder, take((first + i) % call_.world_size));
      if (!holder.has_value()) return true;
    }
    return full(*holder);
  }

  absl::StatusOr<std::optional<RankClaim>> take(int rank) {
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<RankClaim> holder, book_.take(rank, self_));
    if (!holder.has_value()) {
      rank_ = rank;
      claimed_ = true;
    }
    return holder;
  }

  Done agree_on_size() {
    std::string old;
    for (int tries = 0; tries < kTries; ++tries) {
      GRADWIRE_ASSIGN_OR_RETURN(std::string said, book_.propose_size(call_.world_size, old));
      const std::optional<int> size = read_size(said);
      if (size == call_.world_size) return true;
      if (size == 0) {
        // An open group is complete as soon as somebody comes.
        GRADWIRE_RETURN_IF_ERROR(book_.decide(FormationResult()).status());
        return withdraw();
      }
      if (size.has_value()) {
        GRADWIRE_ASSIGN_OR_RETURN(const std::optional<Member> other, book_.find_rank_with_size(*size));
        if (other.has_value()) return refuse({sizes_differ(other), std::max<int>(*size, call_.world_size)});
      }
      // Whoever said it did not stay.
      old = std::move(said);
    }
    return book_.invalid_record();
  }

  // When this process has its rank.
  Found wait() {
    GRADWIRE_RETURN_IF_ERROR(book_.set_here(rank_));
    while (book_.left() > absl::ZeroDuration()) {
      GRADWIRE_ASSIGN_OR_RETURN(const bool all, book_.all_here(call_.world_size));
      if (all) return decide(FormationResult());
      GRADWIRE_ASSIGN_OR_RETURN(const std::optional<FormationResult> result,
                                book_.wait_for_result(std::min(kLookAgain, book_.left())));
      if (result.has_value()) return conclude(*result);
    }
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> missing, book_.find_missing(call_.world_size));
    if (missing.empty()) return decide(FormationResult());
    return decide({did_not_arrive(missing), call_.world_size});
  }

  Found decide(const FormationResult& result) {
    GRADWIRE_ASSIGN_OR_RETURN(const FormationResult given, book_.decide(dated(result)));
    return conclude(given);
  }

  // What the group's result means for this process, which waits for it.
  Found conclude(const FormationResult& result) {
    if (!result.complete()) return hear(result);
    if (is_open()) return open_place();
    return Place{.rank = rank_, .number = book_.number(), .claim = self_.text()};
  }

  Found open_place() {
    if (rank_ < 0) {
      GRADWIRE_ASSIGN_OR_RETURN(const int64_t arrived, book_.count_arrival());
      rank_ = static_cast<int>(arrived - 1);
    }
    return Place{.rank = rank_, .number = book_.number(), .claim = ""};
  }

  // A process that was missing hears why there was no group; others come to the next. So do all where time
  // ran out.
  Found come_to_refused(const FormationResult& result) {
    const bool is_old = std::abs(unix_seconds() - result.time) > absl::ToInt64Seconds(kToldFor);
    if (is_open() || is_old || absl::IsDeadlineExceeded(result.refusal)) return come_to_next();
    bool was_missing = false;
    if (call_.rank >= 0) {
      GRADWIRE_ASSIGN_OR_RETURN(was_missing, book_.take_if_new(call_.rank, self_));
      claimed_ = was_missing;
    } else {
      GRADWIRE_ASSIGN_OR_RETURN(const int64_t arrived, book_.count_arrival());
      was_missing = arrived <= result.ranks;
    }
    return was_missing ? Found(hear(result)) : come_to_next();
  }

  Found come_to_complete() {
    GRADWIRE_ASSIGN_OR_RETURN(const int size, book_.size());
    if (size == 0) return is_open() ? open_place() : Found(sizes_differ(std::nullopt));
    std::optional<Member> member;
    for (int rank = 0; rank < size; ++rank) {
      GRADWIRE_ASSIGN_OR_RETURN(std::optional<RankClaim> holder, book_.find_holder(rank));
      // As another rank, too: a group that goes on without some of its members numbers the others anew.
      const bool again = call_.again && holder.has_value() && holder->is_of_this_process();
      if (!holder.has_value() || again) return come_to_next();
      if (rank == 0 || rank == call_.rank) member = {rank, *std::move(holder)};
    }
    if (size != call_.world_size) return sizes_differ(member);
    if (call_.rank < 0) return full(member->claim);
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", call_.rank, " of ", size, " is taken, in a group that is complete: ", member->claim.name(),
        " has it, and this is ", self_.name(),
        "; if the other has ended without leaving, take another group name or another store"));
  }

  Found come_to_next() {
    GRADWIRE_RETURN_IF_ERROR(book_.begin_next());
    return std::nullopt;
  }

  static FormationResult dated(FormationResult result) {
    result.time = unix_seconds();
    return result;
  }

  Done refuse(const FormationResult& result) {
    GRADWIRE_ASSIGN_OR_RETURN(const FormationResult given, book_.decide(dated(result)));
    if (given.complete()) return withdraw();
    return hear(given);
  }

  absl::Status hear(const FormationResult& result) {
    heard_ = true;
    if (claimed_) book_.acknowledge(rank_);
    if (call_.may_end_store && !absl::IsDeadlineExceeded(result.refusal)) {
      book_.wait_until_acknowledged(std::max(result.ranks, call_.world_size));
    }
    return result.refusal;
  }

  // False: this process has nothing in the group any more.
  bool withdraw() {
    if (claimed_) leave_place(store_, {.rank = rank_, .number = book_.number(), .claim = self_.text()});
    claimed_ = false;
    rank_ = call_.rank;
    return false;
  }

  absl::Status did_not_arrive(const std::vector<int>& missing) const {
    constexpr std::size_t kShown = 16;
    const auto end = missing.begin() + static_cast<int64_t>(std::min(missing.size(), kShown));
    return absl::DeadlineExceededError(
        absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing.begin(), end, ", "),
                     missing.size() > kShown ? absl::StrCat(" and ", missing.size() - kShown, " more") : "",
                     " did not arrive (the world size is ", call_.world_size, ")"));
  }

  // No other: it is in an open group.
  absl::Status sizes_differ(const std::optional<Member>& other) const {
    const std::string self = rank_ < 0 ? "this process" : absl::StrCat("rank ", rank_);
    const std::string theirs =
        other.has_value() ? absl::StrCat("rank ", other->rank, " says world_size=", other->claim.world_size,
                                         " (", other->claim.name(), ")")
                          : "the group is open, with world_size=0";
    return absl::InvalidArgumentError(absl::StrCat("the world sizes differ: ", theirs, ", ", self,
                                                   " says world_size=", call_.world_size, " (", self_.name(),
                                                   ")"));
  }

  absl::Status full(const RankClaim& holder) const {
    return absl::FailedPreconditionError(absl::StrCat("the group is full: all of its ", call_.world_size,
                                                      " ranks are taken, one by ", holder.name(),
                                                      "; this is ", self_.name()));
  }

  Store& store_;
  FormationRecord book_;
  const GroupFormation call_;
  const RankClaim self_;
  // In the current group.
  int rank_;
  bool claimed_ = false;
  // Why there is no group: then the claim stays, so that nobody comes to it as the same rank.
  bool heard_ = false;
};

}  // namespace

absl::StatusOr<Place> form_group(Store& book, const GroupFormation& call) { return Caller(book, call).run(); }

void leave_place(Store& book, const Place& place) {
  if (!place.claim.empty()) give_back(book, place.number, place.rank, place.claim);
}

}  // namespace gradwire::store
