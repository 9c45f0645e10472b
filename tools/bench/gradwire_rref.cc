#include <ATen/ops/empty.h>

#include <optional>
#include <stdexcept>

#include "rpc/rpc.h"
#include "tools/bench/gradwire_member.h"
#include "tools/bench/measure.h"

namespace gradwire::bench {
namespace {

// A value is made at the other worker, fetched, and let go.
class GradwireRref final : public GradwireMember {
 public:
  Measurement run(const Task& task) override {
    if (task.case_name != "cycle") throw std::invalid_argument("no case " + task.case_name);
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
};

}  // namespace

std::unique_ptr<Participant> make_gradwire_rref() { return std::make_unique<GradwireRref>(); }

}  // namespace gradwire::bench
