#include "gradwire/data_parallel/arrangement/agreed_order.h"

#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/rank_names.h"
#include "gradwire/data_parallel/bucket_plan.h"

namespace gradwire::collectives {

std::vector<std::size_t> agree_on_order(ProcessGroup& group, const std::vector<std::size_t>& mine,
                                        at::Device device) {
  at::Tensor order = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    order.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(mine[i]);
  }
  order = order.to(device);
  group.broadcast(order, group.ranks()[0]);
  order = order.cpu();
  const int64_t* data = order.const_data_ptr<int64_t>();
  const std::vector<int64_t> agreed(data, data + order.numel());
  // It comes from another process.
  if (!is_permutation_of_all(agreed, mine.size())) {
    throw Error(absl::InternalError(absl::StrCat("malformed order of the parameters from ",
                                                 name_rank(0, group.ranks()), ": not a permutation")));
  }
  return std::vector<std::size_t>(agreed.begin(), agreed.end());
}

}  // namespace gradwire::collectives
