#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/etcd/etcd_options.h"

namespace gradwire::tools {

// Settings of the launchers' rendezvous: --rdzv_conf.
struct RendezvousConf {
  absl::Duration join_timeout = absl::Seconds(600);      // For the minimum number of nodes to join.
  absl::Duration last_call_timeout = absl::Seconds(30);  // For more nodes, after the minimum has joined.
  absl::Duration close_timeout = absl::Seconds(30);      // For the others to learn that the job is over.
  absl::Duration keep_alive_interval = absl::Seconds(5);
  int keep_alive_max_attempt = 3;  // A node is lost after so many intervals without a beat.
  // How long the store may be unreachable before it is lost. By default 60 s for etcd, which may be
  // restarted, and 10 s for a launcher's store, whose contents are lost with the launcher.
  std::optional<absl::Duration> read_timeout;
  std::optional<bool> is_host;  // Whether this launcher serves the store; if unset, decided by the endpoint.

  store::EtcdSecurity etcd;
};

// Parses "name=value,..." into `conf`. Settings that are not named stay unchanged. InvalidArgument names the
// invalid part, but not values that may be secret.
absl::Status parse_rendezvous_conf(absl::string_view text, RendezvousConf& conf);

}  // namespace gradwire::tools
