#include <ATen/ops/empty.h>

#include <stdexcept>

#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"
#include "gradwire/tools/bench/systems/handlers.h"

namespace gradwire::bench {
namespace {

class GradwireRref final : public GradwireMember {
 public:
  Measurement run(const Task& task) override {
    if (task.case_name == "cycle") return cycle(task);
    if (task.case_name == "share") return share(task);
    throw std::invalid_argument("unknown case " + task.case_name);
  }

 private:
  // Creates a value at the other worker, fetches it, and releases it.
  Measurement cycle(const Task& task) {
    const rpc::WorkerInfo owner = agent()->get_worker_info("w0");
    const rpc::Op op_add("aten::add");
    at::Tensor x = at::empty({2}, at::kFloat);
    at::Tensor got;
    return measure(
        {.seconds = task.seconds}, [&](int64_t i) { x.fill_(static_cast<float>(i & 0xffff)); },
        [&](int64_t) {
          const auto sum = agent()->remote<at::Tensor>(owner, op_add, x, x);
          got = sum.to_here();
        },
        [&](int64_t i) {
          if (got.data_ptr<float>()[1] != 2 * static_cast<float>(i & 0xffff)) {
            throw std::runtime_error("wrong value behind an RRef");
          }
        });
  }

  // Passes a reference to a value of one worker to another worker, which fetches the value and releases the
  // reference.
  Measurement share(const Task& task) {
    const rpc::WorkerInfo third = agent()->get_worker_info("w1");
    at::Tensor x = at::empty({2}, at::kFloat).fill_(3);
    const auto shared =
        agent()->remote<at::Tensor>(agent()->get_worker_info("w0"), rpc::Op("aten::add"), x, x);
    shared.confirmed().wait();
    at::Tensor got;
    return measure(
        {.seconds = task.seconds}, [&](int64_t) { got = at::Tensor(); },
        [&](int64_t) { got = agent()->rpc_sync<&fetch>(third, shared); },
        [&](int64_t) {
          if (got.data_ptr<float>()[1] != 6) throw std::runtime_error("wrong value behind a shared RRef");
        });
  }
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_rref() { return std::make_unique<GradwireRref>(); }

}  // namespace gradwire::bench
