// Problems of tensors, planted in a running job: an unused result in the fast mode of the backward pass, an
// exhausted arena, and a rank that is late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tests/diagnosis/diagnosis.h"
#include "gradwire/tests/diagnosis/job.h"
#include "gradwire/tests/diagnosis/member_process.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::tests {
namespace {

using autograd::BackwardMode;
using inspect::Finding;
using ::testing::HasSubstr;
using torch::Tensor;

Tensor predict(const Tensor& x) { return 2 * x; }
GRADWIRE_RPC(predict)
Tensor measure(const Tensor& x) { return 3 * x; }
GRADWIRE_RPC(measure)

// The result of "measure" is not in the loss.
void train(const std::shared_ptr<rpc::Agent>& trainer, BackwardMode mode) {
  const rpc::AgentGuard guard(trainer);
  const Tensor x = torch::ones({3}).requires_grad_();
  autograd::Context context;
  const Tensor measured = rpc::rpc_sync<&measure>("server", x);
  const Tensor predicted = rpc::rpc_sync<&predict>("server", x);
  autograd::backward(context, {predicted.sum()}, {.mode = mode, .timeout = absl::Minutes(30)});
  EXPECT_TRUE(torch::equal(autograd::get_gradients(context).at(x), torch::full({3}, 2.0)));
}

TEST(Diagnosis, AnUnusedResultInTheFastMode) {
  std::optional<Job> job(std::in_place, std::vector<Member>{{"trainer"}, {"server"}});
  Diagnosis diagnosis(job->place());
  train((*job)[0], BackwardMode::kSmart);
  diagnosis.expect_healthy();
  std::thread training([trainer = (*job)[0]] {
    // It waits until the job ends.
    EXPECT_THROW(train(trainer, BackwardMode::kFast), Error);
  });
  EXPECT_THAT(diagnosis.expect(Finding::Kind::kUnusedResult, {"trainer"}),
              AllOf(HasSubstr("the loss does not use the result of "),
                    HasSubstr("measure\" that \"trainer\" has received from \"server\"")));
  job.reset();
  training.join();
}

// The tensors that a worker keeps.
class Shelf {
 public:
  static Shelf& instance() {
    static auto* shelf = new Shelf;
    return *shelf;
  }
  void put(const Tensor& tensor) {
    MutexLock lock(mutex_);
    tensors_.push_back(tensor);
  }
  void clear() {
    std::vector<Tensor> tensors;
    MutexLock lock(mutex_);
    tensors.swap(tensors_);
  }

 private:
  Mutex mutex_;
  std::vector<Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
};

void keep(const Tensor& tensor) { Shelf::instance().put(tensor); }
GRADWIRE_RPC(keep)
void use(const Tensor&) {}
GRADWIRE_RPC(use)

constexpr std::size_t kArena = std::size_t{16} << 20;

// A worker whose arenas are small, as they are in a container with little memory.
Member with_small_arena(const std::string& name) {
  Member member{name};
  member.options.hooks = rpc::wrap_transports([](std::unique_ptr<transport::Transport> transport) {
    if (transport->name() != "shm") return transport;
    transport->shutdown();
    return transport::make_shm_transport({.max_arena_bytes = kArena});
  });
  return member;
}

TEST(Diagnosis, AnExhaustedArena) {
  const Job job({with_small_arena("trainer"), with_small_arena("server")});
  Diagnosis diagnosis(job.place());
  const Tensor tensor = torch::ones({1 << 18});
  const int64_t fill = 2 * static_cast<int64_t>(kArena) / static_cast<int64_t>(tensor.nbytes());
  for (int64_t i = 0; i < fill; ++i) job[0]->rpc_sync<&use>("server", tensor);
  diagnosis.expect_healthy();
  for (int64_t i = 0; i < fill; ++i) job[0]->rpc_sync<&keep>("server", tensor);
  EXPECT_THAT(diagnosis.expect(Finding::Kind::kNoRoom, {"server"}),
              HasSubstr("the shared memory from \"trainer\" to \"server\" has no room"));
  Shelf::instance().clear();
}

TEST(Diagnosis, ARankThatIsLateAtAnAllReduce) {
  const std::string store = new_path("store");
  constexpr char kMember[] = "tests/diagnosis/torch_member";
  {
    // Rank 1 waits for a byte before it calls all_reduce.
    const MemberProcess first({kMember, store, "rank0", "0", "3"});
    const MemberProcess late({kMember, store, "rank1", "1", "3", "late"});
    const MemberProcess last({kMember, store, "rank2", "2", "3"});
    Diagnosis diagnosis("file://" + store);
    EXPECT_THAT(diagnosis.expect(Finding::Kind::kLateRank, {"rank1"}),
                HasSubstr("late rank: rank 1 (\"rank1\") has not called all_reduce "));
    late.go_on();
    diagnosis.expect_healthy(3);
  }
  unlink(store.c_str());
}

}  // namespace
}  // namespace gradwire::tests
