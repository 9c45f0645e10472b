// Collectives in which one rank is late.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

// One end of a process group.
struct End {
  const WorkerView* worker = nullptr;
  const proto::ProcessGroupState* state = nullptr;
  int rank = 0;
};
// The ends of a group, by its name and size.
using Groups = std::map<std::pair<std::string, int>, std::vector<End>>;

// Parses "group \"NAME\", rank R of N".
bool parse_title(const std::string& title, std::string& name, int& rank, int& size) {
  absl::string_view text = title;
  if (!absl::ConsumePrefix(&text, "group \"")) return false;
  const std::size_t end = text.rfind("\", rank ");
  if (end == absl::string_view::npos) return false;
  name = std::string(text.substr(0, end));
  text.remove_prefix(end + absl::string_view("\", rank ").size());
  const std::size_t of = text.find(" of ");
  return of != absl::string_view::npos && absl::SimpleAtoi(text.substr(0, of), &rank) &&
         absl::SimpleAtoi(text.substr(of + 4), &size);
}

Groups groups_of(const JobView& job) {
  Groups groups;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::ProcessGroupState& state : worker.state.groups()) {
      std::string name;
      End end{&worker, &state};
      int size = 0;
      if (parse_title(state.title(), name, end.rank, size)) groups[{name, size}].push_back(end);
    }
  }
  return groups;
}

// Whether the last operation of the end's sequence is an earlier one than number `sequence`.
bool is_behind(const End& end, int64_t sequence) {
  return !end.state->has_last() || end.state->last().sequence() < sequence;
}

std::string line_of(const End& end) {
  const std::string where =
      absl::StrCat("rank ", end.rank, " (", in_quotes(end.worker->record.name()), "): ");
  if (!end.state->has_last()) return absl::StrCat(where, "has called nothing");
  const proto::CollectiveState& last = end.state->has_oldest() ? end.state->oldest() : end.state->last();
  constexpr const char* kStates[] = {"queued", "running", "done", "failed"};
  return absl::StrCat(where, printable(last.operation()),
                      last.sequence() < 0 ? "" : absl::StrCat(" #", last.sequence()), ", ",
                      kStates[std::clamp<int>(last.state(), 0, 3)], ", called ",
                      text_of(absl::Microseconds(last.age_us())), " ago");
}

}  // namespace

// The end that has waited longest says which operation is open. Ranks that have not called it are late. If a
// rank is missing because its worker does not answer, that worker is named.
std::vector<Finding> find_late_ranks(const JobView& job, const Thresholds& thresholds) {
  std::vector<Finding> findings;
  for (const auto& [key, ends] : groups_of(job)) {
    const End* waiting = nullptr;
    for (const End& end : ends) {
      if (!end.state->has_oldest() || end.state->oldest().sequence() < 0) continue;
      if (waiting == nullptr || end.state->oldest().age_us() > waiting->state->oldest().age_us())
        waiting = &end;
    }
    if (waiting == nullptr) continue;
    const proto::CollectiveState& open = waiting->state->oldest();
    const absl::Duration age = absl::Microseconds(open.age_us());
    if (age < thresholds.late_rank) continue;
    Finding finding{.kind = Finding::Kind::kLateRank, .age = age};
    std::vector<std::string> late;
    std::map<int, std::string> lines;
    for (const End& end : ends) {
      lines.emplace(end.rank, line_of(end));
      if (!is_behind(end, open.sequence())) continue;
      late.push_back(absl::StrCat("rank ", end.rank, " (", in_quotes(end.worker->record.name()), ")"));
      finding.culprits.push_back(end.worker->record.incarnation());
    }
    for (const auto& [rank, line] : lines) finding.details.push_back(line);
    const std::string operation =
        absl::StrCat(printable(open.operation()), " #", open.sequence(), " of group ", in_quotes(key.first));
    if (!late.empty()) {
      finding.title =
          absl::StrCat("late rank: ", absl::StrJoin(late, ", "), late.size() == 1 ? " has" : " have",
                       " not called ", operation, ", for which others have waited ", text_of(age));
    } else if (static_cast<int>(lines.size()) < key.second) {
      finding.title =
          absl::StrCat("late rank: ", operation, " has been open for ", text_of(age), ", and ",
                       key.second - static_cast<int>(lines.size()), " of its ranks are not in the answers");
    } else {
      finding.title = absl::StrCat("slow collective: all ranks have called ", operation, ", which has taken ",
                                   text_of(age));
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace gradwire::inspect
