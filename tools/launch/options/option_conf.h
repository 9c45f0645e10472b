#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/etcd/etcd_options.h"

namespace gradwire::tools {

// How the launchers' rendezvous behaves: --rdzv_conf.
struct RendezvousConf {
  absl::Duration join_timeout = absl::Seconds(600);      // for the smallest number of nodes to come
  absl::Duration last_call_timeout = absl::Seconds(30);  // for more nodes, once the smallest number is there
  absl::Duration close_timeout = absl::Seconds(30);      // for the others to learn that the job is over
  absl::Duration keep_alive_interval = absl::Seconds(5);
  int keep_alive_max_attempt = 3;  // intervals without a sign of life after which a node is lost
  // How long the store may not answer before it is lost. None: 60 s for etcd, which may be started again, and
  // 10 s for a launcher's, whose content is gone with it.
  std::optional<absl::Duration> read_timeout;
  std::optional<bool> is_host;  // whether this launcher serves the store; none: it finds out by the endpoint

  store::EtcdSecurity etcd;
};

// Reads "name=value,..." into `conf`; what is not named stays. InvalidArgument names the part that is wrong,
// without the values of those that may be secret.
absl::Status parse_rendezvous_conf(absl::string_view text, RendezvousConf& conf);

}  // namespace gradwire::tools
