// RRefs that are many and old, or whose holder is gone.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {

std::vector<Finding> find_leaks(const JobView& job, const Thresholds& thresholds) {
  std::vector<Finding> findings;
  for (const WorkerView& owner : job.workers) {
    if (!owner.answered()) continue;
    for (const proto::RRefState& group : owner.state.rrefs()) {
      const absl::Duration age = absl::Microseconds(group.oldest_us());
      const WorkerView* holder = job.find(group.holder());
      const bool gone =
          group.holder() != 0 && (group.holder_lost() || (holder != nullptr && !holder->is_member()));
      const bool many = group.count() >= thresholds.rrefs && age >= thresholds.rref_age;
      if (!many && !(gone && age >= thresholds.orphan_age)) continue;
      Finding finding{.kind = Finding::Kind::kLeak, .age = age};
      const std::string what =
          absl::StrCat(group.count(), group.count() == 1 ? " RRef" : " RRefs", " of type ",
                       group.type().empty() ? "unknown (not made yet)" : in_quotes(group.type()), " at ",
                       in_quotes(owner.record.name()));
      const std::string who = group.holder() == 0 ? "the owner's own process" : job.name_of(group.holder());
      if (gone) {
        finding.title = absl::StrCat("RRefs of a lost worker: ", what, " are held for ", who,
                                     ", which is gone; the oldest is ", text_of(age),
                                     " old. They are freed when all members have confirmed the loss");
        finding.culprits = {owner.record.incarnation()};
      } else {
        finding.title =
            absl::StrCat("RRef leak: ", what, " are held by ", who, "; the oldest is ", text_of(age), " old");
        finding.culprits = {group.holder() == 0 ? owner.record.incarnation() : group.holder()};
      }
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace gradwire::inspect
