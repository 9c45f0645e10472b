#include "gradwire/collectives/group/agreement.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

// The length of one wait for a key; between two waits `interrupted` is called.
constexpr absl::Duration kSlice = absl::Milliseconds(100);
// After its deadline a rank waits this long for rank 0's verdict: rank 0's deadline may be a little later.
constexpr absl::Duration kGrace = absl::Milliseconds(500);
// How long rank 0 waits until the others have received a refusal: rank 0 may host the store, and the store
// may end together with rank 0.
constexpr absl::Duration kReceiveLimit = absl::Seconds(2);

std::string rank_key(absl::string_view key, int rank) { return absl::StrCat(key, "/", rank); }
std::string verdict_key(absl::string_view key) { return absl::StrCat(key, "/verdict"); }
// A rank sets this key after it has received a refusal.
std::string received_key(absl::string_view key, int rank) { return absl::StrCat(key, "/received/", rank); }

std::string to_text(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), " ", status.message());
}

absl::Status from_text(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code) || code < 0 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::InternalError("malformed verdict from rank 0 in the store");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

// Returns the verdict of the round: the first one that was published.
absl::StatusOr<std::string> publish(store::Store& store, absl::string_view key, const absl::Status& verdict,
                                    absl::Duration timeout) {
  return store.try_compare_set(verdict_key(key), "", to_text(verdict), timeout);
}

absl::Status missing(const Agreement& round, const std::vector<int>& ranks) {
  const std::vector<int> named = round.name_all ? ranks : std::vector<int>{ranks.front()};
  return absl::DeadlineExceededError(absl::StrCat(name_ranks(named), " did not arrive"));
}

// Whether the texts do not agree. Then rank 0 returns only after all other ranks have received the verdict.
bool is_disagreement(const absl::Status& verdict) {
  return !verdict.ok() && verdict.code() != absl::StatusCode::kDeadlineExceeded;
}

void wait_until_received(const Agreement& round) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < round.size; ++rank) keys.push_back(received_key(round.key, rank));
  (void)round.store.try_wait(keys, kReceiveLimit);
}

// Fails if the store does not answer: it would not for other ranks either.
absl::StatusOr<bool> has_arrived(const Agreement& round, int rank) {
  // A timeout of zero only asks whether the key exists.
  const absl::Status status = round.store.try_get(rank_key(round.key, rank), absl::ZeroDuration()).status();
  if (status.ok()) return true;
  if (store::is_wait_timeout(status)) return false;
  return status;
}

// The ranks that have not arrived yet.
absl::StatusOr<std::vector<int>> find_missing_ranks(const Agreement& round) {
  std::vector<int> ranks;
  for (int rank = 0; rank < round.size; ++rank) {
    GRADWIRE_ASSIGN_OR_RETURN(const bool arrived, has_arrived(round, rank));
    if (!arrived) ranks.push_back(rank);
  }
  return ranks;
}

// Waits until a key exists. `next_step` is called between the slices of the wait; it returns how long the
// next one may be.
//
// The deadline is checked in the same step as the key: the last request is made even if the deadline has
// passed, so a key that exists is always returned.
absl::StatusOr<std::string> wait_in_slices(store::Store& store, const std::string& key, absl::Time deadline,
                                           absl::FunctionRef<absl::StatusOr<absl::Duration>()> next_step) {
  while (true) {
    GRADWIRE_ASSIGN_OR_RETURN(const absl::Duration slice, next_step());
    const absl::Duration left = std::max(deadline - Clock::system().now(), absl::ZeroDuration());
    absl::StatusOr<std::string> value = store.try_get(key, std::min(left, slice));
    if (!absl::IsDeadlineExceeded(value.status()) || left <= slice) return value;
  }
}

// The waits of one rank in one round, with their progress.
class RoundWait {
 public:
  explicit RoundWait(const Agreement& round) : round_(round), progress_(round.progress) {}

  absl::StatusOr<std::string> wait_for(const std::string& key, absl::Time deadline) {
    bool first = true;
    return wait_in_slices(round_.store, key, deadline, [&]() -> absl::StatusOr<absl::Duration> {
      const bool waited = !std::exchange(first, false);
      if (waited && round_.interrupted != nullptr) GRADWIRE_RETURN_IF_ERROR(round_.interrupted());
      absl::Duration slice = round_.interrupted == nullptr ? absl::InfiniteDuration() : kSlice;
      if (round_.subject.empty()) return slice;
      if (waited) progress_.update([&] { return describe(); });
      return std::min(slice, std::max(progress_.until_next(), kSlice));
    });
  }
  void finish() { progress_.finish(absl::StrCat(round_.subject, ": all ranks have arrived")); }

 private:
  std::optional<ProgressState> describe() const {
    // In a log another rank would write the same: rank 0, or a lower one that waits for it. That is asked
    // first: it takes one request in most cases, and the list of missing ranks one for each rank.
    for (int rank = 0; rank < round_.rank && !round_.progress.output->can_move(); ++rank) {
      const absl::StatusOr<bool> arrived = has_arrived(round_, rank);
      if (!arrived.ok() || *arrived) return std::nullopt;
    }
    const absl::StatusOr<std::vector<int>> ranks = find_missing_ranks(round_);
    if (!ranks.ok()) return std::nullopt;
    const int arrived = round_.size - static_cast<int>(ranks->size());
    return ProgressState{.text = absl::StrCat(round_.subject, ": ", arrived, " of ", round_.size,
                                              " ranks have arrived, waiting for ",
                                              ranks->empty() ? "the answer of rank 0" : name_ranks(*ranks)),
                         .done = arrived,
                         .total = round_.size};
  }

  const Agreement& round_;
  Progress progress_;
};

absl::Status judge_all(const Agreement& round, absl::string_view own, const Judge& judge, RoundWait& wait) {
  for (int rank = 1; rank < round.size; ++rank) {
    const absl::StatusOr<std::string> text = wait.wait_for(rank_key(round.key, rank), round.deadline);
    if (!text.ok()) {
      if (text.status().code() != absl::StatusCode::kDeadlineExceeded) return text.status();
      GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> ranks, find_missing_ranks(round));
      if (!ranks.empty()) return missing(round, ranks);
      // The rank arrived between the end of the wait and the check, so its text is in the store: read it
      // again.
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
  bool first = true;
  return wait_in_slices(store, key, deadline, [&]() -> absl::StatusOr<absl::Duration> {
    if (interrupted == nullptr) return absl::InfiniteDuration();
    if (!std::exchange(first, false)) GRADWIRE_RETURN_IF_ERROR(interrupted());
    return kSlice;
  });
}

std::string name_ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

// Rank 0 may host the store: when it returns with an error, the process may end and the store with it. So the
// other ranks must have read a refusal before rank 0 returns.
//   1. Every rank writes its text.
//   2. Rank 0 reads the texts, judges them, and publishes the verdict.
//   3. The other ranks read the verdict. If it is a refusal, each of them confirms that it has received it.
//   4. After a refusal, rank 0 waits for the confirmations, for at most kReceiveLimit.
// After a timeout rank 0 does not wait: some ranks are missing and would not confirm.
absl::Status agree(const Agreement& round, absl::string_view text, const Judge& judge) {
  // A rank that comes late still writes its text, in at least a second: rank 0 may not have published the
  // verdict yet, and the late rank must then get that verdict too.
  const absl::Duration left = std::max(round.deadline - Clock::system().now(), absl::Seconds(1));
  GRADWIRE_RETURN_IF_ERROR(round.store.try_set(rank_key(round.key, round.rank), text, left));
  RoundWait wait(round);
  if (round.rank == 0) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::string verdict,
                              publish(round.store, round.key, judge_all(round, text, judge, wait), left));
    const absl::Status result = from_text(verdict);
    if (result.ok()) wait.finish();
    if (is_disagreement(result)) wait_until_received(round);
    return result;
  }
  const absl::StatusOr<std::string> verdict = wait.wait_for(verdict_key(round.key), round.deadline + kGrace);
  if (verdict.ok()) {
    const absl::Status result = from_text(*verdict);
    if (result.ok()) wait.finish();
    if (is_disagreement(result)) {
      (void)round.store.try_set(received_key(round.key, round.rank), "", kReceiveLimit);
    }
    return result;
  }
  if (verdict.status().code() != absl::StatusCode::kDeadlineExceeded) return verdict.status();
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> ranks, find_missing_ranks(round));
  if (ranks.empty()) return absl::DeadlineExceededError("rank 0 arrived but did not publish a verdict");
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
  round.subject = "monitored_barrier";
  round.deadline = Clock::system().now() + timeout;
  const absl::Status status = agree(round, "");
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat(status.message(), " within ", absl::FormatDuration(timeout)));
  }
  GRADWIRE_RETURN_IF_ERROR(status);
  // All ranks have arrived at this barrier, so they have returned from the earlier ones: their keys can go.
  for (; round.rank == 0 && forgotten_ < number; ++forgotten_) {
    forget(round.store, key(forgotten_), round.size);
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
