#include "gradwire/tests/rpc/far_work.h"

#include <ATen/ops/mul.h>

#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "gradwire/base/testing/limits.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/script.h"
#include "gradwire/rpc/stock_modules.h"

namespace far_work {

namespace rpc = gradwire::rpc;

at::Tensor through(const Linear& module, const at::Tensor& x) { return module.forward(x); }
GRADWIRE_RPC(through)

std::string meet(const std::vector<std::string>& names, double seconds) {
  return gradwire::status_of([&] {
           rpc::rpc_barrier(
               names, seconds < 0 ? std::optional<absl::Duration>() : std::optional(absl::Seconds(seconds)));
         })
      .ToString();
}
GRADWIRE_RPC(meet)

void set_timeout(double seconds) { rpc::set_rpc_timeout(absl::Seconds(seconds)); }
GRADWIRE_RPC(set_timeout)

double timeout() { return absl::ToDoubleSeconds(rpc::get_rpc_timeout()); }
GRADWIRE_RPC(timeout)

std::string wait_for(const std::string& worker) {
  return gradwire::status_of([&] { rpc::rpc_sync<&until_cancelled>(worker); }).ToString();
}
GRADWIRE_RPC(wait_for)

gradwire::Future<void> until_cancelled() {
  gradwire::Promise<void> promise;
  rpc::CallContext::current()->cancellation().on_cancelled(
      [promise] { promise.set_error(absl::CancelledError("the caller has given up")); });
  return promise.future();
}
GRADWIRE_RPC(until_cancelled)

at::Tensor multiply(const at::Tensor& x, const std::string& worker) {
  return rpc::rpc_sync<&multiply_here>(worker, at::mul(x, x));
}
GRADWIRE_RPC(multiply)

at::Tensor multiply_here(const at::Tensor& x) { return at::mul(x, x); }
GRADWIRE_RPC(multiply_here)

at::Tensor identity(const at::Tensor& x) { return x; }
GRADWIRE_RPC(identity)

namespace {
// The limit while the process has none left.
std::unique_ptr<gradwire::LimitScope> no_descriptors;
std::unique_ptr<gradwire::LimitScope> no_memory;
}  // namespace

void take_descriptors() {
  no_descriptors = std::make_unique<gradwire::LimitScope>(RLIMIT_NOFILE, gradwire::no_free_descriptor());
}
GRADWIRE_RPC(take_descriptors)

void give_descriptors() { no_descriptors.reset(); }
GRADWIRE_RPC(give_descriptors)

void take_memory() {
  no_memory =
      std::make_unique<gradwire::LimitScope>(RLIMIT_AS, gradwire::address_space_and(std::size_t{24} << 20));
}
GRADWIRE_RPC(take_memory)

void give_memory() { no_memory.reset(); }
GRADWIRE_RPC(give_memory)

void register_scripts() {
  rpc::register_script("far_work", R"(
def twice(x: Tensor) -> Tensor:
  return x * 2

def far(first: str, second: str, x: Tensor) -> Tensor:
  there = rpc.rpc_async(first, twice, (x,))
  more = rpc.remote(second, twice, (there.wait(),))
  return more.to_here()
)");
}

}  // namespace far_work
