// Counts the workers of the job in the store that the launcher serves, and waits until all have been counted.

#include <cstdio>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/launch_info.h"

int main() {
  try {
    const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
    gradwire::store::TcpStore store(info.master_addr, info.master_port, {.timeout = absl::Seconds(100)});
    if (store.add("arrivals", 1) == info.world_size) store.set("all arrived", "yes");
    store.wait({"all arrived"});
    // Rank 0 ends first; the others still use the store.
    if (info.rank == 0) return 0;
    store.set(absl::StrCat("after ", info.rank), "");
    std::printf("%d of %d on %s\n", info.rank, info.world_size, info.device().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
