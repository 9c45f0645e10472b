#include "gradwire/tests/simulation/rendezvous/coverage.h"

namespace gradwire::rendezvous_simulation {

simulation::CoverageTable Coverage::table() {
  return simulation::CoverageTable({{"the record",
                                     {"none", "joining", "running", "closed"},
                                     {"the first node creates the record",
                                      "a node enters",
                                      "a node enters as waiting",
                                      "a node becomes ready",
                                      "a round begins with all nodes",
                                      "a round begins with the nodes of the previous one",
                                      "a round begins after the last call",
                                      "restart: a worker failed",
                                      "restart: a node was lost",
                                      "next round: a node left",
                                      "next round: a node joined",
                                      "a node is done",
                                      "a round's store is served",
                                      "the job succeeds",
                                      "the job fails: a worker",
                                      "the job fails: a lost node",
                                      "the job fails: a node left its round",
                                      "the job fails: a node left while nodes joined",
                                      "a participant is lost while nodes join",
                                      "a waiting node is lost",
                                      "a node leaves while nodes join",
                                      "a waiting node leaves",
                                      "waiting nodes are admitted",
                                      "a node that was removed enters again",
                                      "a node with workers is removed",
                                      "ended: succeeded",
                                      "ended: failed",
                                      "ended: too late",
                                      "ended: rank taken",
                                      "ended: other settings",
                                      "ended: too few nodes",
                                      "ended: left",
                                      "ended: the store is lost",
                                      "an answer is lost after its change took effect",
                                      "a change takes effect after it was given up",
                                      "a change conflicts with another one"}}},
                                   {
#include "gradwire/tests/simulation/rendezvous/impossible.inc"
                                   },
                                   {
#include "gradwire/tests/simulation/rendezvous/rare.inc"
                                   });
}

}  // namespace gradwire::rendezvous_simulation
