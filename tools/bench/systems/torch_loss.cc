#include "gradwire/tools/bench/suites/loss.h"
#include "gradwire/tools/bench/systems/torch_agent.h"
#include "gradwire/tools/bench/systems/torch_member.h"

namespace gradwire::bench {
namespace {

// torch_rpc.cc registers the operators. torch's agent has no function that reports a lost worker.
class TorchLoss final : public BenchProcess, private LossObserver {
 public:
  std::string listen(const Endpoint& endpoint) override { return torch_.listen(endpoint); }
  void join(const Endpoint& endpoint) override {
    process_ = TorchAgent::operation("aten::gradwire_bench_process_id");
    nap_ = TorchAgent::operation("aten::gradwire_bench_nap");
    torch_.join(endpoint);
  }
  Measurement run(const Task& task) override { return run_loss(*this, task); }

 private:
  int64_t process_of(int rank) override {
    return TorchAgent::result(*torch_.call(rank, process_, {})).toInt();
  }
  absl::AnyInvocable<void()> nap_async(int rank, int64_t microseconds) override {
    return [future = torch_.call(rank, nap_, {microseconds})] { TorchAgent::result(*future); };
  }
  bool can_detect_loss() const override { return false; }
  bool is_lost(int /*rank*/) override { return false; }

  TorchAgent torch_;
  std::shared_ptr<torch::jit::Operator> process_, nap_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_torch_loss() { return std::make_unique<TorchLoss>(); }

}  // namespace gradwire::bench
