#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::data_parallel {

// Options of PostLocalSgdHook.
struct PostLocalSgdOptions {
  // The gradients are averaged over this group in the first passes.
  std::shared_ptr<collectives::ProcessGroup> group;
  // The group of the later passes, for example the ranks of one host. nullptr: the gradients of the later
  // passes stay on their rank.
  std::shared_ptr<collectives::ProcessGroup> subgroup;
  // Number of passes that average over `group`.
  int64_t start_local_sgd_iter = 0;
};

// The hook of post-local SGD: it averages gradients over all ranks in the first passes, and over a subgroup
// afterwards. A model averager (averaging/model_averager.h) then keeps the replicas together. It follows
// post_localSGD_hook of torch.distributed.
class PostLocalSgdHook : public CommHook {
 public:
  // Throws Error with InvalidArgument if there is no group, or start_local_sgd_iter is negative.
  explicit PostLocalSgdHook(PostLocalSgdOptions options);

  HookStep run(GradBucket& bucket) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // Number of passes so far, at most start_local_sgd_iter.
  int64_t iteration() const { return iteration_; }

 private:
  const PostLocalSgdOptions options_;
  int64_t iteration_ = 0;
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::PostLocalSgdHook;
using data_parallel::PostLocalSgdOptions;
}  // namespace gradwire::collectives
