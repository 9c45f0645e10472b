#pragma once

namespace gradwire::simulation {

// The body of a simulation_test: runs as many schedules as run_options() says. None may violate an invariant.
// Together they must reach each pair of a state and an event that the coverage does not list as impossible.
void run_schedules();

}  // namespace gradwire::simulation
