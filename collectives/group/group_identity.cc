#include "gradwire/collectives/group/group_identity.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/collectives/group/rank_names.h"

namespace gradwire::collectives {

GroupIdentity::GroupIdentity(std::string name_, int rank_, std::vector<int> ranks_, bool is_world_)
    : name(std::move(name_)),
      rank(rank_),
      ranks(std::move(ranks_)),
      is_world(is_world_),
      recorder(absl::StrCat("group \"", name, "\", rank ", rank, " of ", ranks.size())),
      metrics(name) {}

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
  // The record is logged once. After the first timeout the group is usually broken, and later records would
  // only repeat it.
  if (status.code() == absl::StatusCode::kDeadlineExceeded && !dumped_.exchange(true)) {
    if (flight_directory().empty()) {
      log_text(LogLevel::kError, absl::StrCat("an operation timed out; flight record of ", recorder.text()));
    } else {
      // An error is logged.
      (void)dump_flight_record(recorder,
                               absl::StrCat("an operation timed out: ", name_call(record, sequence)));
    }
  }
  return explain_ranks(with_context(status, name_call(record, sequence)), ranks);
}

}  // namespace gradwire::collectives
