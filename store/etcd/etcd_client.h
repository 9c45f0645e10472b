#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/etcd.grpc.pb.h"
#include "gradwire/store/etcd/etcd_options.h"

namespace gradwire::store {

// One member of an etcd cluster: its services over a channel of its own. The channel connects at its first
// use, and again at the next use after a connection broke. A member that does not answer a call or a ping for
// about 15 s is given up. Thread-safe.
struct EtcdMember {
  std::string address;  // "host:port".
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Auth::Stub> auth;
};

// Creates the members for `endpoints`, each "host:port", "http://host:port" or "https://host:port". Does not
// connect yet. InvalidArgument, which names the cause: a malformed endpoint, an empty list, http:// although
// security requires TLS, a certificate without its key or the reverse, a password without a user, or a file
// that cannot be read.
absl::StatusOr<std::vector<EtcdMember>> open_etcd_members(const std::vector<std::string>& endpoints,
                                                          const EtcdSecurity& security);

// Calls the members of an etcd cluster: one of them until it fails, then the next. Manages the user's token.
//
// Thread-safe. Starts no threads.
class EtcdClient {
 public:
  struct Options {
    std::vector<EtcdMember> members;
    std::string user, password;
    // For messages: the name of the store, and the prefix that the user must be granted.
    std::string name, prefix;
  };
  EtcdClient(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

  // Makes one call to a member. The context is for that call only. Runs on the calling thread, any number of
  // times.
  using Attempt = std::function<grpc::Status(const EtcdMember& member, grpc::ClientContext& context)>;

  // Calls members until one has answered, with pauses after all have failed. Tries for at least a second,
  // even if the deadline is sooner. Errors are those of explain_etcd(); Unavailable and DeadlineExceeded name
  // the endpoints.
  //
  // `unsure`, if given, is set to true if a failed attempt may have been executed by etcd, even if a later
  // attempt succeeds. An attempt that changes keys must be safe in that case.
  absl::Status call(absl::Time deadline, const Attempt& attempt, bool* unsure = nullptr);
  // The same without the minimum of a second.
  absl::Status call_until(absl::Time deadline, const Attempt& attempt, bool* unsure = nullptr);

  // Calls one member once. If it fails, the next call uses the next member.
  grpc::Status call_once(absl::Time deadline, const Attempt& attempt, std::string* address = nullptr);

  // `deadline`, or a second from now if that is later.
  absl::Time with_least_time(absl::Time deadline) const;
  // The error for an answer that etcd cannot have given.
  absl::Status not_etcd_error(absl::string_view why) const;

 private:
  // Authenticates if necessary. The token is empty if the store has no user or etcd has no authentication.
  grpc::Status get_token(const EtcdMember& member, absl::Time deadline, std::string& token);
  void prepare(grpc::ClientContext& context, absl::Time deadline) const;
  void pause(int round, absl::Time deadline);

  const Options options_;
  Clock& clock_;
  std::atomic<std::size_t> current_{0};  // Index of the member in use.

  Mutex mutex_;
  bool authenticated_ ABSL_GUARDED_BY(mutex_) = false;
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::store
