// A process with only an EtcdStore with a short lease, for tests that kill it. The argument is the endpoint.

#include <unistd.h>

#include <cstdio>

#include "gradwire/base/error.h"
#include "gradwire/store/etcd_store.h"

int main(int, char** argv) {
  try {
    gradwire::store::EtcdStore store({argv[1]}, "job", {.lease_ttl = absl::Seconds(2)});
    store.add("counter", 1);
    store.set("alive", "yes");
    while (true) ::pause();
  } catch (const gradwire::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
