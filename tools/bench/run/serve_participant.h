#pragma once

#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// The main program of a participant: obeys the orders that come in on `fd` until the coordinator is gone or
// says so. Ends the process, without destructors: torch's agent cannot be taken down by one side alone, and
// what is measured is over.
[[noreturn]] void serve_participant(int fd, Participant& participant);

}  // namespace gradwire::bench
