#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "gradwire/security/local_peer/tcp_end.h"

namespace gradwire::security {

// A line of /proc/net/tcp or /proc/net/tcp6.
struct ProcNetTcpLine {
  TcpEnd source;
  TcpEnd destination;
  FoundSocket socket;
};

// nullopt for the heading and for a line that is malformed. Pure.
std::optional<ProcNetTcpLine> parse_proc_net_tcp_line(absl::string_view line);

}  // namespace gradwire::security
