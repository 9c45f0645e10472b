// A worker of a job with a planted problem: "deadlock", "slow" or "none". Rank 0 writes the port of the job's
// store to descriptor 9 when the problem is there. Then the job runs until it is ended.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/tools/launch_info.h"

namespace gradwire::rpc {
namespace {

constexpr absl::Duration kLong = absl::Minutes(30);

Promise<void>& never() {
  static auto* promise = new Promise<void>;
  return *promise;
}

// Reports to the test that the problem is there.
void report() {
  const std::string line = absl::StrCat(getenv("MASTER_PORT"), "\n");
  if (write(9, line.data(), line.size()) < 0) std::abort();
}
GRADWIRE_RPC(report)

// Its methods run one at a time.
struct Desk {
  int64_t sign() { return 1; }
  // Asks the other desk, which asks this one to sign. It never does, because it is still asking.
  int64_t ask(const RRef<Desk>& self, const RRef<Desk>& other) {
    return other.with_timeout(kLong).rpc_sync<&Desk::ask_back>(self);
  }
  int64_t ask_back(const RRef<Desk>& asker) {
    const Future<int64_t> signature = asker.with_timeout(kLong).rpc_async<&Desk::sign>();
    rpc_sync<&report>("default0");
    return signature.wait();
  }
};
GRADWIRE_RPC_SERIAL_CLASS(Desk)
GRADWIRE_RPC_METHOD(Desk, sign)
GRADWIRE_RPC_METHOD(Desk, ask)
GRADWIRE_RPC_METHOD(Desk, ask_back)

Future<void> sleep_on() {
  rpc_sync<&report>("default0");
  return never().future();
}
GRADWIRE_RPC(sleep_on)

}  // namespace
}  // namespace gradwire::rpc

int main(int argc, char** argv) {
  using namespace gradwire::rpc;
  const std::string problem = argc > 1 ? argv[1] : "none";
  const gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
  init_rpc(info.name());
  RRef<Desk> first, second;
  gradwire::Future<int64_t> answer;
  gradwire::Future<void> slow;
  if (info.rank == 0 && problem == "deadlock") {
    first = remote<Desk>("default0");
    second = remote<Desk>("default1");
    answer = first.with_timeout(kLong).rpc_async<&Desk::ask>(first, second);
  } else if (info.rank == 0 && problem == "slow") {
    slow = rpc_async<&sleep_on>(Destination("default1").with_timeout(kLong));
  } else if (info.rank == 0) {
    report();
  }
  never().future().wait();
}
