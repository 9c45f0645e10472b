#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/security/limits.h"
#include "gradwire/security/warning_limit.h"
#include "gradwire/transport/tcp/admission/admission.h"

namespace gradwire::transport {

class UcxConnection;

// The accepted connections of a transport, each with its place, and those among them whose peers have not
// proved who they are: the arrivals. It limits their number. Used only by the loop's driver.
class UcxArrivals {
 public:
  explicit UcxArrivals(const Limits& limits)
      : admission_({.arrivals = limits.max_arrivals,
                    .arrivals_per_host = limits.max_arrivals_per_address,
                    .connections_per_host = limits.max_connections_per_address}) {}

  // Returns the place of a process on `host` that wants to connect; 0: reject it. Another arrival may have to
  // give up its place. Must not be called from UCX's callbacks.
  Admission::Id arrive_in_loop(const std::string& host);
  // The connection that has got the place.
  void add_in_loop(Admission::Id place, UcxConnection& connection) { waiting_.emplace(place, &connection); }
  // Whether the host of this arrival may have another connection.
  bool may_connect_in_loop(Admission::Id place) const { return admission_.may_connect(place); }
  // The peer of this arrival has proved who it is.
  void connect_in_loop(Admission::Id place);
  // The connection, or arrival, has ended, and its place is free.
  void leave_in_loop(Admission::Id place);
  // Logs that a connection was refused, unless that was logged for this host in the last minute.
  void warn_in_loop(const std::string& host, absl::string_view peer, absl::string_view reason);

 private:
  Admission admission_;
  HashMap<Admission::Id, UcxConnection*> waiting_;
  security::WarningLimit warnings_;
};

}  // namespace gradwire::transport
