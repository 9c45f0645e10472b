#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/proto/etcd.grpc.pb.h"
#include "gradwire/store/etcd/etcd_options.h"

namespace gradwire::store {

// One member of an etcd cluster: its services over a channel of its own, which connects when it is first
// used, and again when it is used after a connection broke. A member that is silent though something is asked
// of it is given up after about 15 s. Thread-safe.
struct EtcdMember {
  std::string address;  // "host:port".
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Auth::Stub> auth;
};

// `endpoints` are "host:port", "http://host:port" or "https://host:port". Connects to none yet.
// InvalidArgument, naming what is wrong, for an endpoint that is none of these, for none at all, for http://
// where security asks for TLS, for a certificate without its key or the reverse, a password without a user,
// and a file that cannot be read.
absl::StatusOr<std::vector<EtcdMember>> open_etcd_members(const std::vector<std::string>& endpoints,
                                                          const EtcdSecurity& security);

}  // namespace gradwire::store
