#include "gradwire/tools/launch/rendezvous/messages.h"

#include <algorithm>
#include <set>
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

// How many nodes or ranks a message names. One more name becomes "...".
constexpr size_t kNamed = 20;

std::string joined(const std::vector<std::string>& names) {
  const size_t named = std::min(names.size(), kNamed);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + named, ", "),
                      names.size() > named ? ", ..." : "");
}

std::string hosts(const std::vector<Member>& members, bool (*wanted)(const Member&)) {
  std::vector<Member> named;
  for (const Member& member : members) {
    if (wanted(member)) named.push_back(member);
  }
  // Members without a rank keep the order in which they came.
  std::stable_sort(named.begin(), named.end(),
                   [](const Member& one, const Member& other) { return one.rank < other.rank; });
  std::vector<std::string> names;
  for (const Member& member : named) {
    if (names.size() > kNamed) break;
    names.push_back(member.node.host);
    if (member.rank) absl::StrAppend(&names.back(), " as node rank ", *member.rank);
  }
  return joined(names);
}

bool is_there(const Member&) { return true; }
bool is_not_ready(const Member& member) { return !member.ready; }
bool is_not_done(const Member& member) { return !member.done; }

// The node ranks that no participant has.
std::string missing_ranks(const Record& record) {
  std::set<int> present;
  for (const Member& member : record.participants) present.insert(member.rank.value_or(-1));
  std::vector<std::string> ranks;
  for (int rank = 0; rank < record.settings.max_nodes && ranks.size() <= kNamed; ++rank) {
    if (present.count(rank) == 0) ranks.push_back(absl::StrCat(rank));
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
                    " nodes have joined (", hosts(record.participants, &is_there), "), ", missing,
                    min - count == 1 ? " is missing" : " are missing");
  } else {
    absl::StrAppend(&text, "workers of the previous round have not ended on ",
                    hosts(record.participants, &is_not_ready));
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

namespace {

ProgressState describe_joining(const Record& record, absl::Duration last_call) {
  const Settings& settings = record.settings;
  const int count = static_cast<int>(record.participants.size()), min = settings.min_nodes;
  if (count < min) {
    const std::string missing =
        settings.fixed_ranks
            ? absl::StrCat(min - count == 1 ? "node rank " : "node ranks ", missing_ranks(record))
            : absl::StrCat(min - count, min - count == 1 ? " more node" : " more nodes");
    const std::string there =
        count == 0 ? "" : absl::StrCat(" (", hosts(record.participants, &is_there), ")");
    return {.text = absl::StrCat("waiting for ", missing, " to join: ", count,
                                 min < settings.max_nodes ? " of at least " : " of ", min,
                                 " nodes have joined", there),
            .done = count,
            .total = min};
  }
  if (const std::string busy = hosts(record.participants, &is_not_ready); !busy.empty()) {
    return {.text = absl::StrCat("waiting for the workers of the previous round to end on ", busy)};
  }
  return {
      .text = absl::StrCat("waiting for more nodes: ", count, " of at most ", settings.max_nodes,
                           " have joined (", hosts(record.participants, &is_there),
                           "); the round begins when none has come for ", absl::FormatDuration(last_call)),
      .done = count,
      .total = settings.max_nodes};
}

}  // namespace

ProgressState describe_wait(const Record& record, int group_rank, absl::Duration last_call) {
  switch (record.phase) {
    case Phase::kJoining:
      return describe_joining(record, last_call);
    case Phase::kRunning:
      break;
    case Phase::kClosed:
      return {.text = "waiting for the other nodes to learn that the job is over"};
  }
  const int count = static_cast<int>(record.participants.size());
  if (group_rank < 0 || group_rank >= count) {
    return {.text = absl::StrCat("waiting for room: ", count, " nodes are at work (",
                                 hosts(record.participants, &is_there), ")")};
  }
  if (!record.participants[group_rank].done) {
    return {.text = absl::StrCat("waiting for round ", record.round, " to begin: ",
                                 record.participants.front().node.host, " prepares the workers' store")};
  }
  return {.text = absl::StrCat("waiting for the workers on ", hosts(record.participants, &is_not_done),
                               " to end")};
}

}  // namespace gradwire::rendezvous
