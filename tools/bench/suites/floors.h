#pragma once

#include <memory>

#include "gradwire/tools/bench/run/participant.h"

// What the machine itself needs: the least that any framework could do for a case. Each answers the same
// cases as the frameworks do, as far as it can.
namespace gradwire::bench {

// Two processes and a shared page. Waiting on a futex; or looking at it without pause.
std::unique_ptr<Participant> make_floor_futex();
std::unique_ptr<Participant> make_floor_spin();
// Eight bytes there and back over TCP with blocking reads; or with reads that do not block.
std::unique_ptr<Participant> make_floor_tcp();
std::unique_ptr<Participant> make_floor_tcp_spin();
// Copies between buffers that are mapped and warm: one for each way that a case's bytes travel.
std::unique_ptr<Participant> make_floor_memcpy();

}  // namespace gradwire::bench
