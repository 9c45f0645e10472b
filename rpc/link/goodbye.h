#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/link/arrivals.h"

namespace gradwire::rpc {

inline void to_proto(const Departures& sent, proto::Departures& out) {
  out.set_newest(sent.newest);
  for (const Departures::Connection& connection : sent.open) {
    proto::Departures::Connection& entry = *out.add_open();
    entry.set_number(connection.number);
    entry.set_messages(connection.messages);
  }
}

// Returns nullopt if the peer lists more connections than kMaxConnections.
inline std::optional<Departures> from_proto(const proto::Departures& in) {
  if (in.open_size() > static_cast<int>(Departures::kMaxConnections)) return std::nullopt;
  Departures sent;
  sent.newest = in.newest();
  sent.open.reserve(in.open_size());
  for (const proto::Departures::Connection& entry : in.open()) {
    sent.open.push_back({entry.number(), entry.messages()});
  }
  return sent;
}

// Returns a serialised envelope with a Goodbye for `reason` (proto/rpc.proto).
std::string goodbye(const absl::Status& reason);

// The reason of the Goodbye that `by` sends to a worker that it regards as dead, although that worker may be
// alive. Code: Aborted.
absl::Status declared_dead(absl::string_view worker, absl::string_view by);

}  // namespace gradwire::rpc
