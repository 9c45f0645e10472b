#include "gradwire/tests/fork/functions.h"

#include <ATen/ops/ones.h>
#include <unistd.h>

#include "gradwire/rpc/rpc.h"

namespace fork_test {

int64_t twice(int64_t number) { return 2 * number; }
at::Tensor tensor(int64_t size) { return at::ones({size}); }
gradwire::Future<int64_t> never() {
  static auto* const promise = new gradwire::Promise<int64_t>;
  return promise->future();
}
int64_t forks() { return fork(); }

GRADWIRE_RPC(twice)
GRADWIRE_RPC(tensor)
GRADWIRE_RPC(never)
GRADWIRE_RPC(forks)

}  // namespace fork_test
