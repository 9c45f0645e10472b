// Stores that answer slowly.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

// Fewer calls say nothing about a store: one of them may have met a pause of its worker.
constexpr uint32_t kFewestCalls = 3;

bool is_slow(const proto::StoreState& store, const Thresholds& thresholds) {
  return (store.calls() >= kFewestCalls && absl::Microseconds(store.mean_us()) >= thresholds.slow_store) ||
         absl::Microseconds(store.open_us()) >= thresholds.slow_call;
}

std::string line_of(const WorkerView& worker) {
  const proto::StoreState& store = worker.state.store();
  std::string line =
      absl::StrCat(in_quotes(worker.record.name()), ": the last ", store.calls(), " calls took ",
                   text_of(absl::Microseconds(store.mean_us())), " on average");
  if (!store.slowest_operation().empty()) {
    absl::StrAppend(&line, ", the slowest one, ", printable(store.slowest_operation()), ", ",
                    text_of(absl::Microseconds(store.slowest_us())));
  }
  if (store.open_us() >= 0) {
    absl::StrAppend(&line, "; ", printable(store.open_operation()), " has no answer for ",
                    text_of(absl::Microseconds(store.open_us())));
  }
  return line;
}

}  // namespace

// One finding for the job. If only some workers find the store slow, the ways from them to it are slow, or
// they are.
std::vector<Finding> find_slow_stores(const JobView& job, const Thresholds& thresholds) {
  std::vector<const WorkerView*> slow, others;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered() || !worker.state.has_store()) continue;
    if (is_slow(worker.state.store(), thresholds)) {
      slow.push_back(&worker);
    } else if (worker.state.store().calls() >= kFewestCalls) {
      others.push_back(&worker);
    }
  }
  if (slow.empty()) return {};
  const WorkerView& slowest = **std::max_element(slow.begin(), slow.end(), [](const auto* a, const auto* b) {
    return std::max(a->state.store().mean_us(), a->state.store().open_us()) <
           std::max(b->state.store().mean_us(), b->state.store().open_us());
  });
  const proto::StoreState& store = slowest.state.store();
  Finding finding{.kind = Finding::Kind::kSlowStore};
  std::vector<std::string> names;
  for (const WorkerView* worker : slow) {
    names.push_back(in_quotes(worker->record.name()));
    finding.culprits.push_back(worker->record.incarnation());
    finding.details.push_back(line_of(*worker));
  }
  for (const WorkerView* worker : others) finding.details.push_back(line_of(*worker));
  const bool hangs = absl::Microseconds(store.open_us()) >= thresholds.slow_call;
  finding.title = absl::StrCat(
      "slow store: ",
      hangs ? absl::StrCat(printable(store.open_operation()), " has had no answer for ",
                           text_of(absl::Microseconds(store.open_us())))
            : absl::StrCat("a call takes ", text_of(absl::Microseconds(store.mean_us())), " on average"),
      " at ", absl::StrJoin(names, ", "), others.empty() ? "" : ", but not at the other workers",
      "; the store is ", printable(store.description()));
  finding.age = absl::Microseconds(std::max<int64_t>(0, store.open_us()));
  return {finding};
}

}  // namespace gradwire::inspect
