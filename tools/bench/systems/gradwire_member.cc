#include "gradwire/tools/bench/systems/gradwire_member.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::bench {

GradwireMember::GradwireMember() = default;
GradwireMember::~GradwireMember() = default;

std::string GradwireMember::listen(const Place& place) {
  if (place.rank != 0) return "";
  store_ = std::make_shared<store::TcpStore>(place.host, 0, store::TcpStoreOptions{.is_master = true});
  return absl::StrCat(store_->port());
}

void GradwireMember::join(const Place& place) {
  place_ = place;
  if (store_ == nullptr) {
    int port = 0;
    (void)absl::SimpleAtoi(place.addresses.at(0), &port);
    store_ = std::make_shared<store::TcpStore>(place.host, port);
  }
  rpc::RpcBackendOptions options;
  options.store = store_;
  options.join_timeout = absl::Seconds(30);
  options.transports = {place.transport};
  agent_ = rpc::Agent::start(absl::StrCat("w", place.rank), place.rank, place.size, options);
}

}  // namespace gradwire::bench
