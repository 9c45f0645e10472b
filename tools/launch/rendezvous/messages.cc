#include "gradwire/tools/launch/rendezvous/messages.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradwire::rendezvous {
namespace {

std::string describe(const Settings& settings) {
  return absl::StrCat("--nnodes=", settings.min_nodes, ":", settings.max_nodes,
                      " --max_restarts=", settings.max_restarts,
                      settings.fixed_ranks ? " with a --node_rank for each node" : " without node ranks");
}

std::string joined(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 20;
  const size_t named = std::min(names.size(), kNamed);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + named, ", "),
                      names.size() > named ? ", ..." : "");
}

std::string hosts(const std::vector<Member>& members, bool (*wanted)(const Member&)) {
  std::vector<std::string> names;
  for (const Member& member : members) {
    if (!wanted(member)) continue;
    names.push_back(member.node.host);
    if (member.rank) absl::StrAppend(&names.back(), " as node rank ", *member.rank);
  }
  return joined(names);
}

// The node ranks that no participant has.
std::string missing_ranks(const Record& record) {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < record.settings.max_nodes; ++rank) {
    const auto has_rank = [&](const Member& member) { return member.rank == rank; };
    if (std::none_of(record.participants.begin(), record.participants.end(), has_rank)) {
      ranks.push_back(absl::StrCat(rank));
    }
  }
  return joined(ranks);
}

}  // namespace

Outcome outcome_of(const Record& record) {
  if (record.succeeded) return {};
  return {.status = absl::AbortedError(rendezvous::describe(*record.failure)), .failure = record.failure};
}

absl::Status too_late(const Record& record) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the job ", record.run_id, " is over (",
      record.succeeded ? "succeeded" : absl::StrCat("failed: ", rendezvous::describe(*record.failure)),
      "): give a new job an id of its own"));
}

absl::Status too_few(const Record& record, absl::Duration waited) {
  const int count = static_cast<int>(record.participants.size()), min = record.settings.min_nodes;
  std::string text = absl::StrCat("the job ", record.run_id, " could not begin round ", record.round,
                                  " within ", absl::FormatDuration(waited), ": ");
  if (count < min) {
    const std::string missing =
        record.settings.fixed_ranks
            ? absl::StrCat(min - count == 1 ? "node rank " : "node ranks ", missing_ranks(record))
            : absl::StrCat(min - count);
    absl::StrAppend(&text, count, min < record.settings.max_nodes ? " of at least " : " of ", min,
                    " nodes have joined (", hosts(record.participants, [](const Member&) { return true; }),
                    "), ", missing, min - count == 1 ? " is missing" : " are missing");
  } else {
    absl::StrAppend(&text, "workers of the previous round have not ended on ",
                    hosts(record.participants, [](const Member& member) { return !member.ready; }));
  }
  if (record.failure)
    absl::StrAppend(&text, "; the previous round ended: ", rendezvous::describe(*record.failure));
  return absl::DeadlineExceededError(text);
}

absl::Status other_job(const Record& record, absl::string_view mine) {
  return absl::InvalidArgumentError(absl::StrCat("this node was started for the job ", mine,
                                                 ", but the store is used by the job ", record.run_id,
                                                 ": give each job an endpoint of its own"));
}

absl::Status other_settings(const Record& record, const Settings& mine) {
  return absl::InvalidArgumentError(absl::StrCat("this node was started with ", describe(mine),
                                                 ", but the job ", record.run_id, " has ",
                                                 describe(record.settings), ": start all nodes alike"));
}

absl::Status rank_taken(const Member& me, const Member& other) {
  return absl::FailedPreconditionError(absl::StrCat("node rank ", *me.rank, " is used by two launchers, on ",
                                                    other.node.host, " and on ", me.node.host,
                                                    ": give each node a --node_rank of its own"));
}

}  // namespace gradwire::rendezvous
