#include "collectives/group_identity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/log.h"

namespace gradwire::collectives {
namespace {

constexpr std::size_t kMostRanksNamed = 16;

std::string describe_ranks(const std::vector<int>& ranks) {
  const std::size_t named = std::min(ranks.size(), kMostRanksNamed);
  return absl::StrCat(absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                      named < ranks.size() ? ", ..." : "");
}

}  // namespace

GroupIdentity::GroupIdentity(std::string name_, int rank_, std::vector<int> ranks_, bool is_world_)
    : name(std::move(name_)),
      rank(rank_),
      ranks(std::move(ranks_)),
      is_world(is_world_),
      recorder(absl::StrCat("group \"", name, "\", rank ", rank, " of ", ranks.size())) {}

std::string GroupIdentity::name_call(const OperationRecord& record, uint64_t sequence) const {
  std::string text(name_of(record.operation));
  if (is_point_to_point(record.operation)) {
    absl::StrAppend(&text, record.operation == Operation::kSend ? " to " : " from ",
                    record.peer < 0 ? std::string("any rank") : absl::StrCat("rank ", record.peer), ", tag ",
                    record.tag, ",");
  } else {
    absl::StrAppend(&text, " #", sequence);
  }
  return absl::StrCat(text, " of group \"", name, "\" (rank ", rank, " of ", ranks.size(), ")");
}

absl::Status GroupIdentity::failed(const OperationRecord& record, uint64_t sequence, uint64_t entry,
                                   const absl::Status& status) {
  recorder.set_state(entry, FlightRecorder::State::kFailed, coarse_now(), status.code());
  if (status.code() == absl::StatusCode::kDeadlineExceeded && !dumped_.exchange(true)) {
    log(LogLevel::kError, "an operation timed out; flight record of ", recorder.text());
  }
  absl::Status named = with_context(status, name_call(record, sequence));
  if (is_world || !absl::StrContains(status.message(), "rank")) return named;
  return with_worker(absl::Status(named.code(), absl::StrCat(named.message(),
                                                             " [ranks are those of the group; in the "
                                                             "world they are ",
                                                             describe_ranks(ranks), "]")),
                     worker_of(named));
}

}  // namespace gradwire::collectives
