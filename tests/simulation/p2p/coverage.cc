#include "gradwire/tests/simulation/p2p/coverage.h"

namespace gradwire::p2p_simulation {

simulation::CoverageTable Coverage::table() {
  return simulation::CoverageTable({{"a message",
                                     {"queued", "sending RTS", "RTS sent", "CTS received", "sending"},
                                     {"cancelled", "late", "channel ended", "rank lost", "closed",
                                      "sends failed", "CTS", "NACK", "transmitted", "not transmitted"}},
                                    {"a receive",
                                     {"waiting", "CTS sent"},
                                     {"cancelled", "late", "channel ended", "rank lost", "closed",
                                      "delivered", "another size", "cancel received"}}},
                                   {
#include "gradwire/tests/simulation/p2p/impossible.inc"
                                   },
                                   {
#include "gradwire/tests/simulation/p2p/rare.inc"
                                   });
}

}  // namespace gradwire::p2p_simulation
