#pragma once

#include <memory>

#include "absl/status/status.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"
#include "gradwire/transport/ucx/ucx_options.h"

namespace gradwire::transport {

// Connections over UCX, which chooses the method of transfer: InfiniBand, RoCE, shared memory, TCP. Addresses
// are those of tcp, "host:port" or a list of these, and host names are looked up as by tcp; connections are
// established over TCP.
//
// send() copies buffers below 64 KiB, and borrowed buffers of any size. Larger owned buffers are read in
// place by rendezvous, into memory of the peer's pool. The driver of `loop` sends, receives and delivers.
// Without `loop` the transport creates a loop and a thread that drives it, at the first listen() or
// connect().
//
// listen() and connect() return FailedPrecondition for credentials that cannot be used over UCX. With a token
// each connection begins with the token handshake (ucx_opening.h). A connection whose peer does not prove
// that it has the token, or refuses the proof of this process, ends with Unauthenticated.
//
// UCX trusts its peers: this transport does not check the bytes of UCX's own protocols, also with a token.
// UCX reads the environment variables UCX_*.
std::unique_ptr<Transport> make_ucx_transport(UcxOptions options = UcxOptions(),
                                              std::shared_ptr<EventLoop> loop = nullptr);

// Checks whether UCX starts on this host: Unavailable with the cause.
absl::Status probe_ucx();

}  // namespace gradwire::transport
