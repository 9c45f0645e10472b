#include "gradwire/tests/simulation/pass/coverage.h"

namespace gradwire::pass_simulation {
namespace {

using Names = std::vector<const char*>;

Names part_states() { return {"new", "wave", "work left", "idle", "ended", "failed"}; }
Names part_events() {
  return {"MARK",        "MARK again",   "NEEDED",      "NEEDED again", "MARK answered",   "RUN",
          "RUN again",   "RUN answered", "FINISH",      "FINISH again", "FINISH answered", "ABORT",
          "call failed", "node ran",     "node failed", "worker lost",  "released",        "cancelled"};
}

}  // namespace

simulation::CoverageTable Coverage::table() {
  return simulation::CoverageTable(
      {
          {"a participant's part", part_states(), part_events()},
          {"the root's part", part_states(), part_events()},
          {"a context at a worker",
           {"unknown", "live", "released"},
           {"opened", "forward", "sends", "inputs", "of a pass", "let go", "CLEANUP", "overdue",
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
