#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

}  // namespace gradwire::store
