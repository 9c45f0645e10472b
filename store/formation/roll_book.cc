#include "gradwire/store/formation/roll_book.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {
namespace {

constexpr char kCurrent[] = "current";
constexpr char kHere[] = "here";
constexpr char kAbsent[] = "absent";

// What those who know that there will be no group give others to hear of it.
constexpr absl::Duration kToBeHeard = absl::Seconds(1);
constexpr absl::Duration kGiveBackTime = absl::Seconds(1);
// How often a key may change while this process tries to.
constexpr int kTries = 1000;

}  // namespace

absl::Status RollBook::turn_to_current() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string current, look(kCurrent));
  number_ = 0;
  if (current.empty() || (absl::SimpleAtoi(current, &number_) && number_ > 0)) return absl::OkStatus();
  return no_sense();
}

absl::Status RollBook::begin_next() {
  const std::string current = number_ == 0 ? "" : absl::StrCat(number_);
  return store_.try_compare_set(kCurrent, current, absl::StrCat(number_ + 1), left()).status();
}

absl::StatusOr<std::optional<RollVerdict>> RollBook::verdict() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text, look(key("verdict")));
  if (text.empty()) return std::nullopt;
  return read(text);
}

absl::StatusOr<std::optional<RollVerdict>> RollBook::wait_for_verdict(absl::Duration patience) {
  const absl::StatusOr<std::string> text = store_.try_get(key("verdict"), patience);
  if (absl::IsDeadlineExceeded(text.status())) return std::nullopt;
  return read(text);
}

absl::StatusOr<RollVerdict> RollBook::decide(const RollVerdict& verdict) {
  return read(store_.try_compare_set(key("verdict"), "", verdict.text(), left()));
}

absl::StatusOr<std::string> RollBook::say_size(int size, const std::string& old) {
  return store_.try_compare_set(key("world_size"), old, absl::StrCat(size), left());
}

std::optional<int> read_size(const std::string& text) {
  int size = 0;
  if (!absl::SimpleAtoi(text, &size) || size < 0 || size > static_cast<int>(kMaxKeysPerWait))
    return std::nullopt;
  return size;
}

absl::StatusOr<int> RollBook::size() {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text, look(key("world_size")));
  const std::optional<int> size = read_size(text);
  if (!size.has_value()) return no_sense();
  return *size;
}

absl::StatusOr<int64_t> RollBook::count_arrival() { return store_.try_add(key("arrivals"), 1, left()); }

absl::StatusOr<std::optional<Claim>> RollBook::take(int rank, const Claim& claim) {
  const std::string mine = claim.text();
  std::string seen;
  for (int tries = 0; tries < kTries; ++tries) {
    GRADWIRE_ASSIGN_OR_RETURN(std::string found,
                              store_.try_compare_set(key("rank", rank), seen, mine, left()));
    if (found == mine) return std::nullopt;
    std::optional<Claim> holder = Claim::read(found);
    if (holder.has_value() && !holder->has_ended()) return holder;
    seen = std::move(found);
  }
  return no_sense();
}

absl::StatusOr<bool> RollBook::take_if_new(int rank, const Claim& claim) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string found,
                            store_.try_compare_set(key("rank", rank), "", claim.text(), left()));
  return found == claim.text();
}

absl::StatusOr<std::optional<Claim>> RollBook::find_holder(int rank) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text, look(key("rank", rank)));
  std::optional<Claim> holder = Claim::read(text);
  if (holder.has_value() && holder->has_ended()) holder.reset();
  return holder;
}

absl::StatusOr<std::optional<RollBook::Member>> RollBook::find_who_says(int size) {
  for (int rank = 0; rank < size; ++rank) {
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<Claim> holder, find_holder(rank));
    if (holder.has_value() && holder->world_size == size)
      return std::optional<Member>({rank, *std::move(holder)});
  }
  return std::nullopt;
}

absl::Status RollBook::set_here(int rank) { return store_.try_set(key("here", rank), kHere, left()); }

absl::StatusOr<bool> RollBook::all_here(int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key("here", rank));
  const absl::Status keys_there = store_.try_wait(keys, absl::ZeroDuration());
  if (!keys_there.ok())
    return absl::IsDeadlineExceeded(keys_there) ? absl::StatusOr<bool>(false) : keys_there;
  for (int rank = 0; rank < size; ++rank) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::optional<Claim> holder, find_holder(rank));
    if (!holder.has_value()) return false;
  }
  return true;
}

absl::StatusOr<std::vector<int>> RollBook::find_missing(int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::string here, look(key("here", rank)));
    // A process that ended while it waited has left the key.
    std::optional<Claim> holder;
    if (!here.empty()) {
      GRADWIRE_ASSIGN_OR_RETURN(holder, find_holder(rank));
    }
    if (!holder.has_value()) missing.push_back(rank);
  }
  return missing;
}

void RollBook::set_heard(int rank) { (void)store_.try_set(key("heard", rank), "", kToBeHeard); }

void RollBook::wait_until_heard(int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key("heard", rank));
  (void)store_.try_wait(keys, kToBeHeard);
}

absl::Status RollBook::no_sense() const {
  return absl::FailedPreconditionError(
      absl::StrCat("what the ", store_.description(), " holds was not written by members of a group"));
}

absl::Duration RollBook::left() const { return deadline_ - Clock::system().now(); }

void give_back(Store& store, int64_t number, int rank, const std::string& claim) {
  (void)store.try_compare_set(absl::StrCat(number, "/rank/", rank), claim, "", kGiveBackTime);
}

std::string RollBook::key(const char* name) const { return absl::StrCat(number_, "/", name); }

std::string RollBook::key(const char* name, int rank) const {
  return absl::StrCat(number_, "/", name, "/", rank);
}

absl::StatusOr<std::string> RollBook::look(const std::string& key) {
  // A question that changes nothing: no key has this value, and of one that is missing the expected value is
  // returned.
  absl::StatusOr<std::string> value = store_.try_compare_set(key, kAbsent, kAbsent, left());
  if (value.ok() && *value == kAbsent) return std::string();
  return value;
}

absl::StatusOr<RollVerdict> RollBook::read(const absl::StatusOr<std::string>& text) const {
  if (!text.ok()) return text.status();
  std::optional<RollVerdict> verdict = RollVerdict::read(*text);
  if (!verdict.has_value()) return no_sense();
  return *std::move(verdict);
}

namespace {

constexpr char kComplete[] = "complete";
constexpr char kRefused[] = "refused";
constexpr std::size_t kMostText = 4096;

}  // namespace

std::string RollVerdict::text() const {
  if (complete()) return kComplete;
  return absl::StrCat(kRefused, " ", ranks, " ", time, " ", static_cast<int>(refusal.code()), " ",
                      refusal.message())
      .substr(0, kMostText);
}

std::optional<RollVerdict> RollVerdict::read(const std::string& text) {
  if (text == kComplete) return RollVerdict();
  if (text.size() > kMostText) return std::nullopt;
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 4));
  RollVerdict verdict;
  int code = 0;
  if (words.size() != 5 || words[0] != kRefused || !absl::SimpleAtoi(words[1], &verdict.ranks) ||
      verdict.ranks < 0 || verdict.ranks > static_cast<int>(kMaxKeysPerWait) ||
      !absl::SimpleAtoi(words[2], &verdict.time) || !absl::SimpleAtoi(words[3], &code) || code < 1 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return std::nullopt;
  }
  verdict.refusal = absl::Status(static_cast<absl::StatusCode>(code), words[4]);
  return verdict;
}

}  // namespace gradwire::store
