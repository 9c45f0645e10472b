#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/calls/endpoint.h"

namespace gradwire::store {

// Finds the TcpStore of the processes whose init method is this multicast group, for a process that does not
// belong to them and changes nothing for them. `group_name`: as RendezvousOptions::group_name. The answer is
// not authenticated: the store must prove that it belongs to the job.
//
// Waits at most `timeout`. Errors: those of MulticastSocket::open(); NotFound if no such process answers, or
// if they have not chosen the host of their store.
absl::StatusOr<Endpoint> find_multicast_store(const Endpoint& group, absl::string_view group_name,
                                              absl::Duration timeout);

}  // namespace gradwire::store
