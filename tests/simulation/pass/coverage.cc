#include "gradwire/tests/simulation/pass/coverage.h"

namespace gradwire::pass_simulation {
namespace {

using Names = std::vector<const char*>;

Names part_states() { return {"new", "wave", "work left", "idle", "ended", "failed"}; }
Names part_events() {
  return {"MARK",         "MARK repeated", "NEEDED",      "NEEDED repeated", "MARK answered",   "RUN",
          "RUN repeated", "RUN answered",  "FINISH",      "FINISH repeated", "FINISH answered", "ABORT",
          "call failed",  "node ran",      "node failed", "worker lost",     "released",        "cancelled"};
}

}  // namespace

simulation::CoverageTable Coverage::table() {
  return simulation::CoverageTable(
      {
          {"a participant's part", part_states(), part_events()},
          {"the root's part", part_states(), part_events()},
          {"a context at a worker",
           {"unknown", "live", "released"},
           {"opened", "forward", "sends", "inputs", "pass message", "user release", "CLEANUP", "overdue",
            "origin lost", "other lost"}},
      },
      {
#include "gradwire/tests/simulation/pass/impossible.inc"
      },
      {
#include "gradwire/tests/simulation/pass/rare.inc"
      });
}

}  // namespace gradwire::pass_simulation
