#include "gradwire/security/policy/decision_cache.h"

#include "absl/hash/hash.h"

namespace gradwire::security {

DecisionCache::DecisionCache(PolicyPtr policy) { replace(policy); }

void DecisionCache::replace(const PolicyPtr& policy) {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    shard.policy = policy;
    forget_locked(shard);
  }
}

void DecisionCache::forget_locked(Shard& shard) {
  shard.callers.clear();
  shard.compiled.clear();
  shard.name_bytes = shard.compiled_rules = 0;
}

DecisionCache::Caller& DecisionCache::add_locked(Shard& shard, absl::string_view caller) {
  std::vector<uint32_t> fitting = shard.policy->fitting(caller);
  if (shard.callers.size() >= kMaxCallers || shard.compiled_rules + fitting.size() > kMaxCompiledRules)
    forget_locked(shard);
  auto [compiled, added] = shard.compiled.try_emplace(std::move(fitting));
  if (added) {
    compiled->second = shard.policy->compile(compiled->first);
    shard.compiled_rules += compiled->first.size();
  }
  Caller& entry = shard.callers[caller];
  entry.rules = compiled->second;
  return entry;
}

Decision DecisionCache::check(absl::string_view caller, const Subject& subject) {
  // Before the lock: a long name must not be compared with patterns, or copied.
  if (subject.name.size() > kMaxRuleName || caller.size() > kMaxRuleName) return {false, 0};
  Shard& shard = shards_[absl::Hash<absl::string_view>()(caller) % kShards];
  MutexLock lock(shard.mutex);
  auto found = shard.callers.find(caller);
  Caller& entry = found != shard.callers.end() ? found->second : add_locked(shard, caller);
  auto& decisions =
      entry.decisions[subject.owner.empty() ? static_cast<std::size_t>(subject.kind) : kCalleeClasses];
  if (auto known = decisions.find(subject.name); known != decisions.end()) return known->second;
  const Decision decision = entry.rules->check(subject);
  shard.name_bytes += subject.name.size() + sizeof(std::string);
  if (shard.name_bytes <= kMaxNameBytes) {
    decisions.emplace(subject.name, decision);
  } else {
    forget_locked(shard);
  }
  return decision;
}

std::size_t DecisionCache::size() const {
  std::size_t total = 0;
  for (const Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    for (const auto& [name, caller] : shard.callers) {
      for (const auto& decisions : caller.decisions) total += decisions.size();
    }
  }
  return total;
}

}  // namespace gradwire::security
