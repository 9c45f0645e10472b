#pragma once

#include <memory>

#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// gRPC over TCP: synchronous server, blocking unary calls, insecure credentials.
std::unique_ptr<Participant> make_grpc();

}  // namespace gradwire::bench
