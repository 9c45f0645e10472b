#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/repeated_task.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/security/policy/policy.h"
#include "gradwire/security/policy/policy_file.h"

namespace gradwire::proto {
class Request;
}

namespace gradwire::rpc {

// Decides what other workers may use of one worker, by the rules of its policy file (docs/security.md). The
// caller is the worker that the link knows. A worker needs no permission for calls to itself. Thread-safe.
class CallPolicy {
 public:
  // As PolicyFile::open().
  static absl::StatusOr<std::unique_ptr<CallPolicy>> open(
      const std::string& path, const Worker& self,
      const Repeat& examine = security::PolicyFile::once_a_second());

  // Whether `from` may make this call. All of these must be allowed:
  //   - its callee. For a method this is its class, for `fetch` the reference "fetch".
  //   - the reference "fetch", if an operator or a script is called on a reference
  //   - the reference "hold", if the result stays here
  //   - the service "autograd", if the call belongs to an autograd context
  // PermissionDenied names the caller, the callee, the file and the line.
  absl::Status check_request(const Worker& from, const proto::Request& request);
  // Whether `from` may use a service (security::kServices).
  absl::Status check_service(const Worker& from, absl::string_view service);
  // Whether `from` may register a reference to a value of this worker that another worker passed on.
  absl::Status check_hold(const Worker& from);

  // Number of calls and messages that were denied.
  uint64_t denied() const { return denied_.load(std::memory_order_relaxed); }

 private:
  CallPolicy(std::shared_ptr<security::PolicyFile> file, const Worker& self)
      : file_(std::move(file)), self_(self) {}

  absl::Status check(const Worker& from, const security::Subject& subject);
  absl::Status refuse(const Worker& from, const security::Subject& subject, int line);
  // Whether this refusal must be logged: it is the first one of this caller by this line.
  bool is_news(const std::string& caller, int line);

  const std::shared_ptr<security::PolicyFile> file_;
  const Worker self_;

  Mutex mutex_;
  // The callers and lines of the refusals that were logged, for this generation of the file.
  HashSet<std::pair<std::string, int>> logged_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;

  std::atomic<uint64_t> denied_{0};
};

}  // namespace gradwire::rpc
