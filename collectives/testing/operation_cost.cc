// Measures the time that a group adds to an operation of its backend: it uses a backend that does nothing.
#include <ATen/ops/ones.h>

#include <chrono>
#include <cstdio>

#include "gradwire/collectives/collectives.h"
#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/collectives/testing/idle_backend.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives {
namespace {

using testing::IdleBackend;
using Tensors = std::vector<at::Tensor>;

template <class Body>
void measure(const char* name, Body body) {
  constexpr int kRounds = 2000;
  // The best of many short rounds is one in which no other process ran.
  double best = 1e9;
  for (int attempt = 0; attempt < 200; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRounds; ++i) body();
    const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - begin;
    best = std::min(best, passed.count() / kRounds);
  }
  std::printf("%-28s %8.1f ns\n", name, best);
}

void run() {
  register_backend(Backend::kCpu, [](const BackendContext&) -> absl::StatusOr<std::unique_ptr<GroupBackend>> {
    return std::make_unique<IdleBackend>();
  });
  const Group group =
      init_process_group({.world_size = 1, .rank = 0, .store = std::make_shared<store::HashStore>()});
  const at::Tensor tensor = at::ones({2});
  measure("all_reduce", [&] { group->all_reduce(tensor); });
  measure("all_reduce of the world", [&] { all_reduce(tensor); });
  measure("broadcast", [&] { group->broadcast(tensor, 0); });
  measure("barrier", [&] { group->barrier(); });
  const Tensors list = {tensor};
  measure("all_gather_into_tensor", [&] { group->all_gather_into_tensor(tensor, tensor); });
  measure("reduce_scatter_tensor", [&] { group->reduce_scatter_tensor(tensor, tensor); });
  measure("all_to_all_single", [&] { group->all_to_all_single(tensor, tensor); });
  measure("gather", [&] { group->gather(tensor, list, 0); });
  measure("scatter", [&] { group->scatter(tensor, list, 0); });
  measure("send", [&] { group->send(tensor, 0); });
  measure("isend, wait", [&] { group->isend(tensor, 0)->wait(); });
  measure("recv", [&] { group->recv(tensor, 0); });
  measure("all_reduce_async, wait", [&] { group->all_reduce_async(tensor)->wait(); });
}

}  // namespace
}  // namespace gradwire::collectives

int main() { gradwire::collectives::run(); }
