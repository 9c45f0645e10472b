// Rank 0 prints the keys that its round finds in the store, adds one of its own and two as PyTorch's programs
// do, and fails in round 0. The other ranks wait for the keys.

#include <cstdio>
#include <exception>

#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/launch_info.h"

int main() {
  try {
    const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
    gradwire::store::TcpStore store(info.master_addr, info.master_port, {.timeout = absl::Seconds(100)});
    if (info.rank != 0) {
      store.wait({"mine", "default_pg/0//address", "rpc_prefix_0/address"});
      return 0;
    }
    // The launchers' own keys are in the same store if there are several nodes.
    std::printf("round %d found:", info.round);
    for (const std::string& key : store.list_keys()) {
      if (key.rfind("rendezvous/", 0) != 0) std::printf(" %s", key.c_str());
    }
    std::printf("\n");
    store.multi_set({"mine", "default_pg/0//address", "rpc_prefix_0/address"}, {"", "", ""});
    return info.round == 0 ? 3 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
