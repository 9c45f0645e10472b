#pragma once

#include <memory>

#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// A transport alone, without agents, calls or tensors: "ping" is a header of eight bytes there and back,
// "send" a buffer there and a header back.
std::unique_ptr<Participant> make_gradwire_transport();

}  // namespace gradwire::bench
