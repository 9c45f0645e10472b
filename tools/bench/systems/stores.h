#pragma once

#include <memory>

#include "gradwire/tools/bench/run/participant.h"

// The suite store: member 0 holds the table, the last member sets a key and gets it.
namespace gradwire::bench {

std::unique_ptr<Participant> make_gradwire_store();
std::unique_ptr<Participant> make_torch_store();

}  // namespace gradwire::bench
