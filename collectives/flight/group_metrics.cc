#include "gradwire/collectives/flight/group_metrics.h"

#include <map>
#include <set>
#include <utility>

#include "gradwire/base/metrics/label_table.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/mutex.h"

namespace gradwire::collectives {
namespace {

using metrics::Metric;

// Groups in the text; the others are added up as "other".
constexpr std::size_t kMostGroups = 64;

// The members of groups in this process.
struct Members {
  ProcessMutex mutex;
  std::set<GroupMetrics*> alive ABSL_GUARDED_BY(mutex);
};
Members& members() {
  static auto* const instance = new Members;
  return *instance;
}

}  // namespace

// Adds the counts of all members, by group and operation. Several members of a group may be in one process.
class GroupTotals {
 public:
  using Key = std::pair<std::string, Operation>;

  static std::map<Key, GroupMetrics::Totals> read() {
    std::map<Key, GroupMetrics::Totals> totals;
    std::set<std::string> groups;
    MutexLock lock(members().mutex);
    for (const GroupMetrics* member : members().alive) {
      const bool known = groups.count(member->group_) > 0 || groups.size() < kMostGroups;
      if (known) groups.insert(member->group_);
      for (std::size_t i = 0; i < GroupMetrics::kKinds; ++i) {
        const GroupMetrics::Counts* const counts = member->counts_[i].load(std::memory_order_acquire);
        if (counts == nullptr) continue;
        GroupMetrics::Totals& total =
            totals[{known ? member->group_ : std::string(metrics::kOther), static_cast<Operation>(i)}];
        // The failures first: an operation that ends meanwhile must not be counted as failed only.
        total.failed += counts->failed.value();
        total.bytes += counts->bytes.value();
        total.seconds.add(counts->seconds.values());
      }
    }
    return totals;
  }
};

namespace {

void collect(metrics::Samples& samples) {
  for (const auto& [key, total] : GroupTotals::read()) {
    const absl::string_view group = key.first;
    const absl::string_view operation = name_of(key.second);
    const uint64_t count = total.seconds.count();
    samples.add(Metric::kCollectives, {group, operation, "ok"}, count - std::min(count, total.failed));
    samples.add(Metric::kCollectives, {group, operation, "failed"}, total.failed);
    samples.add(Metric::kCollectiveBytes, {group, operation}, total.bytes);
    samples.add(Metric::kCollectiveSeconds, {group, operation}, total.seconds);
  }
}

[[maybe_unused]] const bool registered = [] {
  metrics::register_process_collector(&collect);
  return true;
}();

}  // namespace

GroupMetrics::GroupMetrics(std::string group) : group_(std::move(group)) {
  MutexLock lock(members().mutex);
  members().alive.insert(this);
}

GroupMetrics::~GroupMetrics() {
  {
    MutexLock lock(members().mutex);
    members().alive.erase(this);
  }
  for (const std::atomic<Counts*>& counts : counts_) delete counts.load();
}

GroupMetrics::Counts& GroupMetrics::make(Operation operation) {
  auto made = std::make_unique<Counts>();
  Counts* expected = nullptr;
  // Another thread may have made it meanwhile.
  if (counts_[static_cast<std::size_t>(operation)].compare_exchange_strong(expected, made.get(),
                                                                           std::memory_order_acq_rel)) {
    return *made.release();
  }
  return *expected;
}

}  // namespace gradwire::collectives
