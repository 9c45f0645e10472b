#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/etcd/etcd_channel.h"

namespace gradwire::store {

// Calls the members of an etcd cluster: one of them until it fails, then the next. Sees to the user's token.
//
// Thread-safe. Has no threads of its own.
class EtcdClient {
 public:
  struct Options {
    std::vector<EtcdMember> members;
    std::string user, password;
    // Both for messages: what calls itself so, and what it has to be granted.
    std::string name, prefix;
  };
  EtcdClient(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

  // Asks a member; the context is ready for use, and for nothing else. Runs on the calling thread, any number
  // of times.
  using Attempt = std::function<grpc::Status(const EtcdMember& member, grpc::ClientContext& context)>;

  // Asks until a member has answered, with pauses when all have failed. However short, the deadline leaves a
  // second. An error is explain_etcd()'s; Unavailable or DeadlineExceeded name the endpoints.
  //
  // `unsure`, if given, becomes true when an attempt failed that may have been carried out: also when a later
  // one succeeds. Attempts that change something have to be written so that this does no harm.
  absl::Status call(absl::Time deadline, const Attempt& attempt, bool* unsure = nullptr);
  // The same without the second.
  absl::Status call_until(absl::Time deadline, const Attempt& attempt, bool* unsure = nullptr);

  // Asks one member once; when it fails, the next is asked next time.
  grpc::Status call_once(absl::Time deadline, const Attempt& attempt, std::string* address = nullptr);

  // `deadline`, or a second from now if that is later.
  absl::Time with_least_time(absl::Time deadline) const;
  // An answer that cannot be right.
  absl::Status no_etcd_here(absl::string_view why) const;

 private:
  // Of a failure to authenticate; the token is empty where the store has no user or etcd no authentication.
  grpc::Status get_token(const EtcdMember& member, absl::Time deadline, std::string& token);
  void prepare(grpc::ClientContext& context, absl::Time deadline) const;
  void pause(int round, absl::Time deadline);

  const Options options_;
  Clock& clock_;
  std::atomic<std::size_t> current_{0};  // The member that is asked.

  Mutex mutex_;
  bool authenticated_ ABSL_GUARDED_BY(mutex_) = false;
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::store
