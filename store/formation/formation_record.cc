#include "gradwire/store/formation/formation_record.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
namespace {

constexpr char kCurrent[] = "current";
constexpr char kAbsent[] = "absent";

// How long the hosting process of a refused group waits until the other members have read the refusal.
constexpr absl::Duration kAcknowledgeTime = absl::Seconds(1);
constexpr absl::Duration kGiveBackTime = absl::Seconds(1);
// Limit of attempts to change a key that other processes keep changing.
constexpr int kTries = 1000;

}  // namespace

absl::Status FormationRecord::open_current() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string current, read_key(kCurrent));
  number_ = 0;
  if (current.empty() || (absl::SimpleAtoi(current, &number_) && number_ > 0)) return absl::OkStatus();
  return invalid_record();
}

// If another process has begun it first, the comparison fails, which is as good: the caller reads `current`
// again.
absl::Status FormationRecord::begin_next() {
  const std::string current = number_ == 0 ? "" : absl::StrCat(number_);
  return store_.try_compare_set(kCurrent, current, absl::StrCat(number_ + 1), left()).status();
}

absl::StatusOr<std::optional<FormationResult>> FormationRecord::result() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text, read_key(key("result")));
  if (text.empty()) return std::nullopt;
  return read(text);
}

absl::StatusOr<std::optional<FormationResult>> FormationRecord::wait_for_result(absl::Duration timeout) {
  const absl::StatusOr<std::string> text = store_.try_get(key("result"), timeout);
  if (absl::IsDeadlineExceeded(text.status())) return std::nullopt;
  return read(text);
}

// Written once: returns the result that was there first, which may differ from the given one.
absl::StatusOr<FormationResult> FormationRecord::decide(const FormationResult& result) {
  return read(store_.try_compare_set(key("result"), "", result.text(), left()));
}

absl::StatusOr<std::string> FormationRecord::propose_size(int size, const std::string& old) {
  return store_.try_compare_set(key("world_size"), old, absl::StrCat(size), left());
}

std::optional<int> read_size(const std::string& text) {
  int size = 0;
  if (!absl::SimpleAtoi(text, &size) || size < 0 || size > static_cast<int>(kMaxKeysPerWait))
    return std::nullopt;
  return size;
}

absl::StatusOr<int> FormationRecord::size() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text, read_key(key("world_size")));
  const std::optional<int> size = read_size(text);
  if (!size.has_value()) return invalid_record();
  return *size;
}

absl::StatusOr<int64_t> FormationRecord::count_arrival() {
  return store_.try_add(key("arrivals"), 1, left());
}

absl::StatusOr<std::optional<RankClaim>> FormationRecord::take(int rank, const RankClaim& claim) {
  // Replaces a missing or returned claim, or one of a process that has ended. Each comparison returns the
  // present claim:
  // 1. It is this process's own: the rank is taken.
  // 2. Its process may still run: return it.
  // 3. Its process has ended, or it was given back: compare again, with this text.
  //
  // A claim contains a random number, so no two processes write the same text.
  const std::string mine = claim.text();
  std::string seen;
  for (int tries = 0; tries < kTries; ++tries) {
    GRADWIRE_ASSIGN_OR_RETURN(std::string found,
                              store_.try_compare_set(key("rank", rank), seen, mine, left()));
    if (found == mine) return std::nullopt;
    std::optional<RankClaim> holder = RankClaim::read(found);
    if (holder.has_value() && !holder->has_ended()) return holder;
    seen = std::move(found);
  }
  return invalid_record();
}

absl::StatusOr<bool> FormationRecord::take_if_new(int rank, const RankClaim& claim) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string found,
                            store_.try_compare_set(key("rank", rank), "", claim.text(), left()));
  return found == claim.text();
}

absl::StatusOr<std::optional<RankClaim>> FormationRecord::find_holder(int rank) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text, read_key(key("rank", rank)));
  std::optional<RankClaim> holder = RankClaim::read(text);
  if (holder.has_value() && holder->has_ended()) holder.reset();
  return holder;
}

absl::StatusOr<std::optional<FormationRecord::Member>> FormationRecord::find_rank_with_size(int size) {
  for (int rank = 0; rank < size; ++rank) {
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<RankClaim> holder, find_holder(rank));
    if (holder.has_value() && holder->world_size == size)
      return std::optional<Member>({rank, *std::move(holder)});
  }
  return std::nullopt;
}

absl::Status FormationRecord::set_waiting(int rank, const RankClaim& claim) {
  return store_.try_set(key("waiting", rank), claim.text(), left());
}

absl::StatusOr<bool> FormationRecord::all_waiting(int first, int end) {
  std::vector<std::string> keys;
  for (int rank = first; rank < end; ++rank) keys.push_back(key("waiting", rank));
  // One call for all ranks first: it fails in most cases, and reading each claim is more expensive.
  const absl::Status keys_exist = store_.try_wait(keys, absl::ZeroDuration());
  if (!keys_exist.ok())
    return absl::IsDeadlineExceeded(keys_exist) ? absl::StatusOr<bool>(false) : keys_exist;
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<int> missing, find_missing(first, end));
  return missing.empty();
}

absl::StatusOr<std::vector<int>> FormationRecord::find_missing(int first, int end) {
  std::vector<int> missing;
  for (int rank = first; rank < end; ++rank) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::string waiting, read_key(key("waiting", rank)));
    // A process that ended while it waited has left its key behind. The key does not count for the next
    // process with this rank, which may have claimed the rank and not yet wait.
    std::string text;
    if (!waiting.empty()) {
      GRADWIRE_ASSIGN_OR_RETURN(text, read_key(key("rank", rank)));
    }
    const std::optional<RankClaim> holder = RankClaim::read(text);
    if (text != waiting || !holder.has_value() || holder->has_ended()) missing.push_back(rank);
  }
  return missing;
}

void FormationRecord::acknowledge(int rank) {
  (void)store_.try_set(key("acknowledged", rank), "", kAcknowledgeTime);
}

// The store ends with this process, and the others could not read the reason then. The result is ignored:
// some of them may never arrive.
void FormationRecord::wait_until_acknowledged(int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key("acknowledged", rank));
  (void)store_.try_wait(keys, kAcknowledgeTime);
}

absl::Status FormationRecord::invalid_record() const {
  return absl::FailedPreconditionError(absl::StrCat(
      "invalid rendezvous keys in the ", store_.description(),
      ": they were not written by members of a group; use an empty store or another group name"));
}

absl::Duration FormationRecord::left() const { return deadline_ - Clock::system().now(); }

// A comparison, so that the claim of a process that took the rank meanwhile stays.
void give_back(Store& store, int64_t number, int rank, const std::string& claim) {
  (void)store.try_compare_set(absl::StrCat(number, "/rank/", rank), claim, "", kGiveBackTime);
}

std::string FormationRecord::key(const char* name) const { return absl::StrCat(number_, "/", name); }

std::string FormationRecord::key(const char* name, int rank) const {
  return absl::StrCat(number_, "/", name, "/", rank);
}

absl::StatusOr<std::string> FormationRecord::read_key(const std::string& key) {
  // A compare_set that changes nothing, because no key has this value. For a missing key it returns the
  // expected value.
  absl::StatusOr<std::string> value = store_.try_compare_set(key, kAbsent, kAbsent, left());
  if (value.ok() && *value == kAbsent) return std::string();
  return value;
}

absl::StatusOr<FormationResult> FormationRecord::read(const absl::StatusOr<std::string>& text) const {
  if (!text.ok()) return text.status();
  std::optional<FormationResult> result = FormationResult::read(*text);
  if (!result.has_value()) return invalid_record();
  return *std::move(result);
}

namespace {

constexpr char kComplete[] = "complete";
constexpr char kRefused[] = "refused";
constexpr std::size_t kMaxTextBytes = 4096;

}  // namespace

std::string FormationResult::text() const {
  if (complete()) return kComplete;
  return absl::StrCat(kRefused, " ", ranks, " ", time, " ", static_cast<int>(refusal.code()), " ",
                      refusal.message())
      .substr(0, kMaxTextBytes);
}

// The text comes from another process, so each field is checked.
std::optional<FormationResult> FormationResult::read(const std::string& text) {
  if (text == kComplete) return FormationResult();
  if (text.size() > kMaxTextBytes) return std::nullopt;
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 4));
  FormationResult result;
  int code = 0;
  if (words.size() != 5 || words[0] != kRefused || !absl::SimpleAtoi(words[1], &result.ranks) ||
      result.ranks < 0 || result.ranks > static_cast<int>(kMaxKeysPerWait) ||
      !absl::SimpleAtoi(words[2], &result.time) || !absl::SimpleAtoi(words[3], &code) || code < 1 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return std::nullopt;
  }
  result.refusal = absl::Status(static_cast<absl::StatusCode>(code), words[4]);
  return result;
}

}  // namespace gradwire::store
