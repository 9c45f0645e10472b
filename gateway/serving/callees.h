#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/gateway/values/type.h"
#include "gradwire/proto/gateway.pb.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::gateway {

// A function, method, class or operator of a worker.
struct ServedCallee {
  v1::FunctionKind kind = v1::FUNCTION_KIND_UNSPECIFIED;
  std::string name;
  // Empty for an operator.
  std::string text;
  Signature signature;
  uint64_t hash = 0;
  std::string object_type;
  bool idempotent = false;
};

// The callees of one worker, in ascending order of kind and name.
struct ServedCallees {
  std::map<std::pair<int, std::string>, ServedCallee> callees;

  // nullptr if the worker does not serve it.
  const ServedCallee* find(v1::FunctionKind kind, const std::string& name) const {
    const auto found = callees.find({kind, name});
    return found == callees.end() ? nullptr : &found->second;
  }
};

// Asks workers for their callees, and remembers the answers. An incarnation of a worker does not change its
// callees, so an answer stays valid. Thread-safe.
class CalleeDirectory : public std::enable_shared_from_this<CalleeDirectory> {
 public:
  using Answer = absl::StatusOr<std::shared_ptr<const ServedCallees>>;
  using Found = std::function<void(const Answer&)>;

  explicit CalleeDirectory(std::shared_ptr<rpc::Agent> agent) : agent_(std::move(agent)) {}

  // The remembered callees; nullptr if the worker has not been asked.
  std::shared_ptr<const ServedCallees> cached(const rpc::Worker& worker) const;
  // Calls `found` at once, or on the executor when the worker has answered, or does not answer within 10 s.
  void get(const rpc::Worker& worker, Found found);

 private:
  struct Inquiry;
  void ask(const std::shared_ptr<Inquiry>& inquiry);
  void answer(const std::shared_ptr<Inquiry>& inquiry, const Answer& answer);

  const std::shared_ptr<rpc::Agent> agent_;

  mutable Mutex mutex_;
  HashMap<uint64_t, std::shared_ptr<const ServedCallees>> known_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, std::vector<Found>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::gateway
