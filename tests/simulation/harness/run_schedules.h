#pragma once

namespace gradwire::simulation {

// The body of a simulation_test. Runs the number of schedules in run_options(). No schedule may violate an
// invariant. Together the schedules must reach each pair of a state and an event that the coverage table does
// not list as impossible.
void run_schedules();

}  // namespace gradwire::simulation
