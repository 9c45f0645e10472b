#include "absl/strings/str_cat.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/suites/loss.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"
#include "gradwire/tools/bench/systems/handlers.h"

namespace gradwire::bench {
namespace {

class GradwireLoss final : public GradwireMember, private LossObserver {
 public:
  Measurement run(const Task& task) override { return run_loss(*this, task); }

 private:
  int64_t process_of(int rank) override { return agent()->rpc_sync<&process_id>(worker(rank)); }
  absl::AnyInvocable<void()> nap_async(int rank, int64_t microseconds) override {
    return [future = agent()->rpc_async<&nap>(worker(rank), microseconds)] { future.wait(); };
  }
  bool can_detect_loss() const override { return true; }
  bool is_lost(int rank) override {
    const auto found = agent()->services().find_worker(worker(rank));
    return !found.ok() || !agent()->services().worker_status(*found).ok();
  }

  rpc::WorkerInfo worker(int rank) const { return agent()->get_worker_info(absl::StrCat("w", rank)); }
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_loss() { return std::make_unique<GradwireLoss>(); }

}  // namespace gradwire::bench
