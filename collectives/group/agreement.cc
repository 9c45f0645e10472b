#include "gradwire/collectives/group/agreement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

// How long one wait takes before the reason to stop is looked for.
constexpr absl::Duration kSlice = absl::Milliseconds(100);
// Time that others give rank 0 for its verdict: its deadline may be a little later than theirs.
constexpr absl::Duration kGrace = absl::Milliseconds(500);
// Time that rank 0 gives the others to receive a refusal: it may host the store, and end with its error.
constexpr absl::Duration kToBeHeard = absl::Seconds(2);

std::string rank_key(absl::string_view key, int rank) { return absl::StrCat(key, "/", rank); }
std::string verdict_key(absl::string_view key) { return absl::StrCat(key, "/verdict"); }
std::string heard_key(absl::string_view key, int rank) { return absl::StrCat(key, "/heard/", rank); }

std::string to_text(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), " ", status.message());
}

absl::Status from_text(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code) || code < 0 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::InternalError("what rank 0 has put into the store is no verdict");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

// The first verdict counts.
absl::StatusOr<std::string> publish(store::Store& store, absl::string_view key, const absl::Status& verdict,
                                    absl::Duration timeout) {
  return store.try_compare_set(verdict_key(key), "", to_text(verdict), timeout);
}

absl::Status missing(const Agreement& round, const std::vector<int>& ranks) {
  const std::vector<int> named = round.name_all ? ranks : std::vector<int>{ranks.front()};
  return absl::DeadlineExceededError(absl::StrCat(name_ranks(named), " did not arrive"));
}

// Whether the ranks have come and do not agree: then all of them receive it before rank 0 goes.
bool is_disagreement(const absl::Status& verdict) {
  return !verdict.ok() && verdict.code() != absl::StatusCode::kDeadlineExceeded;
}

void wait_until_heard(const Agreement& round) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < round.size; ++rank) keys.push_back(heard_key(round.key, rank));
  (void)round.store.try_wait(keys, kToBeHeard);
}

// The ranks that have not come by now.
absl::StatusOr<std::vector<int>> look_who_is_missing(const Agreement& round) {
  std::vector<int> ranks;
  for (int rank = 0; rank < round.size; ++rank) {
    const absl::StatusOr<std::string> value =
        round.store.try_get(rank_key(round.key, rank), absl::ZeroDuration());
    if (value.ok()) continue;
    if (value.status().code() != absl::StatusCode::kDeadlineExceeded) return value.status();
    ranks.push_back(rank);
  }
  return ranks;
}

absl::Status judge_all(const Agreement& round, absl::string_view own, const Judge& judge) {
  for (int rank = 1; rank < round.size; ++rank) {
    const absl::StatusOr<std::string> text =
        wait_for_key(round.store, rank_key(round.key, rank), round.deadline, round.interrupted);
    if (!text.ok()) {
      if (text.status().code() != absl::StatusCode::kDeadlineExceeded) return text.status();
      GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> ranks, look_who_is_missing(round));
      if (!ranks.empty()) return missing(round, ranks);
      // It has come at the last moment, and is there now.
      --rank;
      continue;
    }
    if (judge != nullptr) GRADWIRE_RETURN_IF_ERROR(judge(rank, own, *text));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> wait_for_key(store::Store& store, const std::string& key, absl::Time deadline,
                                         const std::function<absl::Status()>& interrupted) {
  while (true) {
    const absl::Duration left = std::max(deadline - Clock::system().now(), absl::ZeroDuration());
    absl::StatusOr<std::string> value =
        store.try_get(key, interrupted == nullptr ? left : std::min(left, kSlice));
    if (!absl::IsDeadlineExceeded(value.status()) || left <= kSlice) return value;
    if (interrupted != nullptr) GRADWIRE_RETURN_IF_ERROR(interrupted());
  }
}

std::string name_ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::Status agree(const Agreement& round, absl::string_view text, const Judge& judge) {
  const absl::Duration left = std::max(round.deadline - Clock::system().now(), absl::Seconds(1));
  GRADWIRE_RETURN_IF_ERROR(round.store.try_set(rank_key(round.key, round.rank), text, left));
  if (round.rank == 0) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::string verdict,
                              publish(round.store, round.key, judge_all(round, text, judge), left));
    const absl::Status told = from_text(verdict);
    if (is_disagreement(told)) wait_until_heard(round);
    return told;
  }
  const absl::StatusOr<std::string> verdict =
      wait_for_key(round.store, verdict_key(round.key), round.deadline + kGrace, round.interrupted);
  if (verdict.ok()) {
    const absl::Status told = from_text(*verdict);
    if (is_disagreement(told)) (void)round.store.try_set(heard_key(round.key, round.rank), "", kToBeHeard);
    return told;
  }
  if (verdict.status().code() != absl::StatusCode::kDeadlineExceeded) return verdict.status();
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> ranks, look_who_is_missing(round));
  if (ranks.empty()) return absl::DeadlineExceededError("rank 0 came, and did not answer");
  return missing(round, ranks);
}

void forget(store::Store& store, absl::string_view key, int size) {
  for (int rank = 0; rank < size; ++rank) (void)store.try_delete_key(rank_key(key, rank));
  (void)store.try_delete_key(verdict_key(key));
}

absl::Status MonitoredBarrier::run(Agreement round, absl::Duration timeout) {
  const auto key = [](int64_t number) { return absl::StrCat("monitored_barrier/", number); };
  const int64_t number = next_++;
  round.key = key(number);
  round.deadline = Clock::system().now() + timeout;
  const absl::Status status = agree(round, "");
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat(status.message(), " within ", absl::FormatDuration(timeout)));
  }
  GRADWIRE_RETURN_IF_ERROR(status);
  // A rank that has come to this barrier has left those before.
  for (; round.rank == 0 && forgotten_ < number; ++forgotten_) {
    forget(round.store, key(forgotten_), round.size);
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
