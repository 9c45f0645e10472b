#include "gradwire/collectives/mpi/mpi_witness.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace gradwire::collectives {
namespace {

// The limit for each request to the store. The group works without the store; only its messages say less.
constexpr absl::Duration kStoreTimeout = absl::Seconds(1);
constexpr std::size_t kLongestReason = 1000;

std::string key(absl::string_view what, int rank) { return absl::StrCat("mpi/", what, "/", rank); }

struct Departure {
  uint64_t finished = 0;
  std::string reason;
};

Departure parse_departure(absl::string_view value) {
  Departure departure;
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(value, absl::MaxSplits(' ', 1));
  (void)absl::SimpleAtoi(halves.first, &departure.finished);
  departure.reason = std::string(halves.second.substr(0, kLongestReason));
  return departure;
}

}  // namespace

MpiWitness::MpiWitness(std::shared_ptr<store::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

void MpiWitness::report_waiting(uint64_t number) {
  if (store_ == nullptr || reported_ == number) return;
  reported_ = number;
  (void)store_->try_set(key("at", rank_), absl::StrCat(number), kStoreTimeout);
}

std::optional<std::string> MpiWitness::read(absl::string_view what, int rank) {
  if (store_ == nullptr) return std::nullopt;
  auto value = store_->try_get(key(what, rank), absl::ZeroDuration());
  if (!value.ok()) return std::nullopt;
  return *std::move(value);
}

bool MpiWitness::has_left(int rank) { return read("left", rank).has_value(); }

absl::Status MpiWitness::check_departures(uint64_t number) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const std::optional<std::string> value = read("left", rank);
    if (!value.has_value()) continue;
    const Departure departure = parse_departure(*value);
    // The rank left after it had finished this collective, so it has done its part. The collective can end.
    if (departure.finished >= number) continue;
    return departure.reason.empty()
               ? absl::UnavailableError(absl::StrCat("rank ", rank, " has left the group"))
               : absl::AbortedError(absl::StrCat("rank ", rank, " has failed: ", departure.reason));
  }
  return absl::OkStatus();
}

std::string MpiWitness::missing(uint64_t number) {
  std::vector<std::string> names;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    uint64_t at = 0;
    const std::optional<std::string> value = read("at", rank);
    if (!value.has_value() || !absl::SimpleAtoi(*value, &at) || at < number) {
      names.push_back(absl::StrCat("rank ", rank));
    }
  }
  return names.empty() ? "" : absl::StrCat("no report from ", absl::StrJoin(names, ", "));
}

void MpiWitness::report_leaving(uint64_t finished, absl::string_view reason) {
  if (store_ == nullptr) return;
  (void)store_->try_set(key("left", rank_), absl::StrCat(finished, " ", reason.substr(0, kLongestReason)),
                        kStoreTimeout);
}

}  // namespace gradwire::collectives
