#include "gradwire/tools/bench/systems/gradwire_member.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/bench/security/bench_security.h"

namespace gradwire::bench {
namespace {

// The members may be on several hosts (split_network.h), which need a permission to reach each other.
SecurityOptions protection(const Endpoint& endpoint, const std::string& folder) {
  SecurityOptions security = security_of(endpoint.transport, folder, endpoint.rank);
  security.insecure = endpoint.host != Endpoint().host;
  return security;
}

}  // namespace

GradwireMember::GradwireMember() = default;
GradwireMember::~GradwireMember() = default;

std::string GradwireMember::listen(const Endpoint& endpoint) {
  if (endpoint.rank != 0) return "";
  if (endpoint.transport == "tls") certificates_ = std::make_unique<BenchCertificates>(endpoint.size);
  const std::string folder = certificates_ == nullptr ? "" : certificates_->folder();
  store_ = std::make_shared<store::TcpStore>(
      endpoint.host, 0, store::TcpStoreOptions{.is_master = true, .security = protection(endpoint, folder)});
  return absl::StrCat(store_->port(), ",", folder);
}

void GradwireMember::join(const Endpoint& endpoint) {
  endpoint_ = endpoint;
  const std::vector<std::string> parts = absl::StrSplit(endpoint.addresses.at(0), ',');
  rpc::RpcBackendOptions options;
  options.security = protection(endpoint, parts.at(1));
  if (store_ == nullptr) {
    int port = 0;
    (void)absl::SimpleAtoi(parts.at(0), &port);
    store_ = std::make_shared<store::TcpStore>(endpoint.host, port,
                                               store::TcpStoreOptions{.security = options.security});
  }
  options.store = store_;
  options.join_timeout = absl::Seconds(30);
  options.transports = {agent_transport(endpoint.transport)};
  agent_ = rpc::Agent::start(absl::StrCat("w", endpoint.rank), endpoint.rank, endpoint.size, options);
}

}  // namespace gradwire::bench
