#include "gradwire/tools/bench/systems/gradwire_member.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::bench {

GradwireMember::GradwireMember() = default;
GradwireMember::~GradwireMember() = default;

std::string GradwireMember::listen(const Endpoint& endpoint) {
  if (endpoint.rank != 0) return "";
  store_ = std::make_shared<store::TcpStore>(endpoint.host, 0, store::TcpStoreOptions{.is_master = true});
  return absl::StrCat(store_->port());
}

void GradwireMember::join(const Endpoint& endpoint) {
  endpoint_ = endpoint;
  if (store_ == nullptr) {
    int port = 0;
    (void)absl::SimpleAtoi(endpoint.addresses.at(0), &port);
    store_ = std::make_shared<store::TcpStore>(endpoint.host, port);
  }
  rpc::RpcBackendOptions options;
  options.store = store_;
  options.join_timeout = absl::Seconds(30);
  options.transports = {endpoint.transport};
  agent_ = rpc::Agent::start(absl::StrCat("w", endpoint.rank), endpoint.rank, endpoint.size, options);
}

}  // namespace gradwire::bench
