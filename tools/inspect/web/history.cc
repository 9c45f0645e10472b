#include "gradwire/tools/inspect/web/history.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/rpc/inspect/limits.h"

namespace gradwire::inspect {
namespace {

constexpr std::size_t kMostWorkersOfPass = 64;

template <class List>
void keep_newest(List& list, std::size_t most) {
  while (list.size() > most) list.pop_front();
}

std::array<uint64_t, metrics::kBuckets> buckets_of(const proto::AgentState& state) {
  std::array<uint64_t, metrics::kBuckets> buckets = {};
  for (const proto::NamedNumber& number : state.statistics()) {
    absl::string_view name = number.name();
    std::size_t bucket = 0;
    if (!absl::ConsumePrefix(&name, rpc::kCallBucket) || !absl::SimpleAtoi(name, &bucket)) continue;
    if (bucket < buckets.size() && number.value() > 0)
      buckets[bucket] = static_cast<uint64_t>(number.value());
  }
  return buckets;
}

// When the worker began, as far as the reading says.
absl::Time began(const JobView& job, const WorkerView& worker) {
  if (!worker.answered()) return job.time;
  return job.time - absl::Microseconds(std::max<int64_t>(0, worker.state.uptime_us()));
}

}  // namespace

void History::add(const Report& report) {
  add_sample(report);
  add_lives(report.job);
  add_passes(report.job);
}

void History::add_sample(const Report& report) {
  metrics::HistogramValues values;
  std::map<uint64_t, Buckets> now;
  for (const WorkerView& worker : report.job.workers) {
    if (!worker.answered()) continue;
    const uint64_t self = worker.record.incarnation();
    const Buckets& buckets = now[self] = buckets_of(worker.state);
    const auto before = buckets_.find(self);
    if (before == buckets_.end()) continue;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      if (buckets[i] > before->second[i]) values.counts[i] += buckets[i] - before->second[i];
    }
  }
  const bool is_first = buckets_.empty();
  buckets_ = std::move(now);
  if (is_first) return;
  Sample sample{.time = report.job.time, .calls = values.count()};
  sample.p50 = values.quantile(0.5);
  sample.p99 = values.quantile(0.99);
  for (const auto& [worker, calls] : report.rates.calls_made) sample.calls_made += calls;
  for (const auto& [link, traffic] : report.rates.links) sample.bytes_sent += traffic.sent;
  samples_.push_back(sample);
  keep_newest(samples_, kMostSamples);
}

void History::add_lives(const JobView& job) {
  const bool is_new_group = !group_.empty() && group_ != job.group;
  absl::Time replaced = job.time;
  if (is_new_group) {
    // The new workers are older than the reading that finds them.
    for (const WorkerView& worker : job.workers) replaced = std::min(replaced, began(job, worker));
    restarts_.push_back(replaced);
    keep_newest(restarts_, kMostRestarts);
  }
  group_ = job.group;
  for (auto& [incarnation, life] : lives_) {
    if (life.ended != absl::InfiniteFuture()) continue;
    const WorkerView* const worker = job.find(incarnation);
    if (worker != nullptr && worker->is_member()) continue;
    life.ended = std::max(life.began, replaced);
    if (worker == nullptr) {
      life.how = is_new_group ? "restart" : "gone";
    } else {
      life.how = worker->standing == WorkerView::Standing::kDead ? "dead" : "left";
    }
  }
  for (const WorkerView& worker : job.workers) {
    const uint64_t self = worker.record.incarnation();
    const bool known =
        std::any_of(lives_.begin(), lives_.end(), [&](const auto& each) { return each.first == self; });
    if (known || !worker.is_member()) continue;
    lives_.emplace_back(self, Life{.name = worker.record.name(), .began = began(job, worker)});
  }
  keep_newest(lives_, kMostLives);
}

void History::add_passes(const JobView& job) {
  for (auto& [identity, pass] : passes_) pass.in_progress = false;
  for (const WorkerView& worker : job.workers) {
    if (!worker.answered()) continue;
    for (const proto::PassSummary& part : worker.state.autograd().passes()) {
      const std::pair<uint64_t, uint64_t> identity(part.root(), part.number());
      auto found = std::find_if(passes_.begin(), passes_.end(),
                                [&](const auto& each) { return each.first == identity; });
      const absl::Duration age = absl::Microseconds(std::max<int64_t>(0, part.age_us()));
      if (found == passes_.end()) {
        const WorkerView* const root = job.find(part.root());
        passes_.emplace_back(identity,
                             Pass{.root = root == nullptr ? "an unknown worker" : root->record.name(),
                                  .number = part.number(),
                                  .began = job.time - age});
        found = passes_.end() - 1;
      }
      Pass& pass = found->second;
      pass.in_progress = true;
      pass.took = std::max(pass.took, age);
      pass.began = std::min(pass.began, job.time - age);
      const std::string& name = worker.record.name();
      if (pass.workers.size() < kMostWorkersOfPass &&
          std::find(pass.workers.begin(), pass.workers.end(), name) == pass.workers.end())
        pass.workers.push_back(name);
    }
  }
  keep_newest(passes_, kMostPasses);
}

std::vector<History::Life> History::lives() const {
  std::vector<Life> lives;
  for (const auto& [incarnation, life] : lives_) lives.push_back(life);
  return lives;
}

std::vector<History::Pass> History::passes() const {
  std::vector<Pass> passes;
  for (const auto& [identity, pass] : passes_) passes.push_back(pass);
  return passes;
}

}  // namespace gradwire::inspect
