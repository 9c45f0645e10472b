#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/policy/policy.h"

namespace gradwire::security {

// Answers the questions of many threads by one policy, and remembers the answers. Names of callers and
// callees come from other processes, so what is remembered is bounded. Thread-safe.
class DecisionCache {
 public:
  explicit DecisionCache(PolicyPtr policy);

  Decision check(absl::string_view caller, const Subject& subject);
  // Later questions are answered by this policy.
  void replace(const PolicyPtr& policy);

  // Number of answers that are remembered.
  std::size_t size() const;

  // Per shard: the callers, and the bytes of names, that are remembered. When more come, all are forgotten.
  static constexpr std::size_t kMaxCallers = 1024;
  static constexpr std::size_t kMaxNameBytes = std::size_t{1} << 18;
  // The same for the rules that have been sorted by callers.
  static constexpr std::size_t kMaxCompiledRules = std::size_t{1} << 17;

 private:
  static constexpr std::size_t kShards = 8;

  struct Caller {
    std::shared_ptr<const CallerRules> rules;
    // One table for each kind, and one for methods: a method and a nested class may have the same name.
    std::array<HashMap<std::string, Decision>, kCalleeClasses + 1> decisions;
  };
  // A part of the callers, so that threads that serve different callers do not wait for one another.
  struct alignas(64) Shard {
    mutable Mutex mutex;
    PolicyPtr policy ABSL_GUARDED_BY(mutex);
    HashMap<std::string, Caller> callers ABSL_GUARDED_BY(mutex);
    // The rules of several callers, by the rules that fit them.
    std::map<std::vector<uint32_t>, std::shared_ptr<const CallerRules>> compiled ABSL_GUARDED_BY(mutex);
    std::size_t name_bytes ABSL_GUARDED_BY(mutex) = 0;
    std::size_t compiled_rules ABSL_GUARDED_BY(mutex) = 0;
  };

  static Caller& add_locked(Shard& shard, absl::string_view caller)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);
  static void forget_locked(Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);

  std::array<Shard, kShards> shards_;
};

}  // namespace gradwire::security
