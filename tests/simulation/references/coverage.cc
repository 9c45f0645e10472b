#include "gradwire/tests/simulation/references/coverage.h"

namespace gradwire::references_simulation {

simulation::CoverageTable Coverage::table() {
  return simulation::CoverageTable(
      {
          {"a fork at its holder",
           {"absent", "unconfirmed", "unconfirmed, released", "confirmed", "confirmed, released"},
           {"released", "shared", "unshared", "added", "add refused", "created", "creation failed",
            "child confirmed", "child never arrived", "asked: revoke", "owner lost"}},
          {"a fork at its owner",
           {"RRef unknown", "fork unknown", "known", "deleted", "holder lost", "kept for lost"},
           {"create", "add", "delete", "delete, settled", "register", "unregister"}},
          {"a fence",
           {"none", "due", "running"},
           {"lose", "fence", "asked", "asked, waits", "asked by dead", "answered", "answered: refused",
            "answered late", "join"}},
          {"a member",
           {"unknown", "member", "left", "dead"},
           {"joins", "join refused", "leaves", "dies", "accused by a lost member"}},
          {"a watched worker",
           {"unwatched", "alive", "suspect", "dead"},
           {"connected", "received", "disconnected", "refused", "unreachable", "heartbeat", "accused",
            "removed"}},
      },
      {
#include "gradwire/tests/simulation/references/impossible.inc"
      },
      {
#include "gradwire/tests/simulation/references/rare.inc"
      });
}

}  // namespace gradwire::references_simulation
