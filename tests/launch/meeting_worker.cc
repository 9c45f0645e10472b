// Forms a group with the other workers of its round in their store, writes a line about it to descriptor 9,
// and runs until SIGUSR1 makes it exit with 0.

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
  // Block the signal before threads are started: they inherit the mask.
  sigset_t end_signal;
  sigemptyset(&end_signal);
  sigaddset(&end_signal, SIGUSR1);
  sigprocmask(SIG_BLOCK, &end_signal, nullptr);
  try {
    const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
    gradwire::store::RendezvousOptions options;
    options.timeout = absl::Seconds(100);
    absl::StatusOr<gradwire::store::Rendezvous> met = gradwire::store::rendezvous("env://", -1, -1, options);
    if (!met.ok()) throw gradwire::Error(met.status());
    // A worker of an earlier round in this store would make the count too high.
    const int64_t arrivals = met->store->add("arrivals", 1);
    if (arrivals == info.world_size) met->store->set("all arrived", "yes");
    met->store->wait({"all arrived"});
    dprintf(9, "%d %d %d %d %d %d %d\n", info.rank, info.world_size, info.restart_count, info.round,
            static_cast<int>(arrivals), info.master_port, getpid());
    int signal = 0;
    sigwait(&end_signal, &signal);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
