#include "gradwire/data_parallel/hooks/post_local_sgd_hook.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/hooks/bucket_reductions.h"
#include "gradwire/data_parallel/hooks/hook_archive.h"

namespace gradwire::data_parallel {

PostLocalSgdHook::PostLocalSgdHook(PostLocalSgdOptions options) : options_(std::move(options)) {
  if (options_.group == nullptr) {
    throw Error(absl::InvalidArgumentError("PostLocalSgdHook needs a group"));
  }
  if (options_.start_local_sgd_iter < 0) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("start_local_sgd_iter must not be negative, got ", options_.start_local_sgd_iter)));
  }
}

HookStep PostLocalSgdHook::run(GradBucket& bucket) {
  if (iteration_ < options_.start_local_sgd_iter) {
    if (bucket.is_last()) ++iteration_;
    return mean_of(*options_.group, bucket.buffer());
  }
  if (options_.subgroup == nullptr) return HookStep(bucket.buffer());
  return mean_of(*options_.subgroup, bucket.buffer());
}

void PostLocalSgdHook::save(torch::serialize::OutputArchive& archive) const {
  write_number(archive, "post_local_sgd.iteration", iteration_);
}

void PostLocalSgdHook::load(torch::serialize::InputArchive& archive) {
  iteration_ = read_number(archive, "post_local_sgd.iteration", 0, options_.start_local_sgd_iter);
}

}  // namespace gradwire::data_parallel
