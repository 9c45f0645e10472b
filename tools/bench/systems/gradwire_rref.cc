#include <ATen/ops/empty.h>

#include <memory>
#include <stdexcept>

#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/rref/references.h"
#include "gradwire/tools/bench/run/clocks.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"
#include "gradwire/tools/bench/systems/handlers.h"

namespace gradwire::bench {
namespace {

class GradwireRref final : public GradwireMember {
 public:
  Measurement run(const Task& task) override {
    if (task.case_name == "cycle") return cycle(task);
    if (task.case_name == "share") return share(task);
    if (const CaseName name = parse_case(task.case_name); name.operation == "lose") return lose(name.count);
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

  // Loses workers that hold a few of the references to this worker's `values` values. This is the work under
  // the lock of the references, which every message with a reference needs. It takes no other process: only
  // the state machine takes part.
  Measurement lose(int64_t values) {
    constexpr uint64_t kSelf = 1, kOther = 2;
    constexpr uint64_t kLosses = 100, kReferencesOfEach = 10;
    if (values < static_cast<int64_t>(kReferencesOfEach)) throw std::invalid_argument("too few values");
    rpc::References::Actions ignored;
    if (values_ != values) {
      values_ = values;
      references_ = std::make_unique<rpc::References>(kSelf);
      next_holder_ = kOther + 1;
      for (uint64_t i = 1; i <= static_cast<uint64_t>(values); ++i)
        references_->create({kOther, i}, {kOther, i}, kOther, ignored);
    }
    const uint64_t first = next_holder_;
    next_holder_ += kLosses;
    for (uint64_t holder = first; holder < next_holder_; ++holder) {
      for (uint64_t i = 1; i <= kReferencesOfEach; ++i)
        references_->create({kOther, i}, {holder, i}, holder, ignored);
    }
    Measurement result;
    result.begin_ns = nanoseconds();
    for (uint64_t holder = first; holder < next_holder_; ++holder) {
      rpc::References::Actions actions;
      const int64_t start = nanoseconds();
      references_->lose(holder, actions);
      // The group has agreed on the loss. No other member has to be asked, so the references are released.
      references_->fence(holder, actions);
      result.micros.push_back(static_cast<float>(static_cast<double>(nanoseconds() - start) / 1000));
      if (references_->owner().has_forks_of(holder))
        throw std::runtime_error("a lost worker keeps references");
    }
    result.end_ns = nanoseconds();
    result.timed_calls = result.calls = kLosses;
    result.seconds = static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
    return result;
  }

  // The state of the case lose. Its rounds use the same values, `values_` many.
  int64_t values_ = 0;
  std::unique_ptr<rpc::References> references_;
  uint64_t next_holder_ = 0;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_rref() { return std::make_unique<GradwireRref>(); }

}  // namespace gradwire::bench
