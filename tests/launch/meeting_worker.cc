// Meets the other workers of its round in their store, says so on descriptor 9, and works on until SIGUSR1
// ends it well.

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>

#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/store/init_method.h"
#include "gradwire/tools/launch_info.h"

int main() {
  // Before there are threads, which inherit it.
  sigset_t good_end;
  sigemptyset(&good_end);
  sigaddset(&good_end, SIGUSR1);
  sigprocmask(SIG_BLOCK, &good_end, nullptr);
  try {
    const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
    gradwire::store::RendezvousOptions options;
    options.timeout = absl::Seconds(100);
    absl::StatusOr<gradwire::store::Rendezvous> met = gradwire::store::rendezvous("env://", -1, -1, options);
    if (!met.ok()) throw gradwire::Error(met.status());
    // Whoever of an earlier round is in this store makes the count too high.
    const int64_t comers = met->store->add("comers", 1);
    if (comers == info.world_size) met->store->set("all here", "yes");
    met->store->wait({"all here"});
    dprintf(9, "%d %d %d %d %d %d %d\n", info.rank, info.world_size, info.restart_count, info.round,
            static_cast<int>(comers), info.master_port, getpid());
    int signal = 0;
    sigwait(&good_end, &signal);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
