#include "gradwire/data_parallel/hooks/sparse_average.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/rank_names.h"

namespace gradwire::collectives {
namespace {

// The entries of one rank, filled up with zeros to the same number on every rank.
at::Tensor padded(const at::Tensor& rows, int64_t count) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = count;
  at::Tensor all = at::zeros(sizes, rows.options());
  all.narrow(0, 0, rows.size(0)).copy_(rows);
  return all;
}

}  // namespace

// The ranks have different numbers of entries:
// 1. Gather the numbers. They come from other processes, so check them before memory is allocated.
// 2. Gather indices and values, filled up to the largest number.
// 3. Join the entries in the order of the ranks, so that the sums have the same bits everywhere.
HookStep average_sparse(ProcessGroup& group, const at::Tensor& gradient, int divisor) {
  const at::Tensor mine = gradient.coalesce();
  const at::Tensor count = at::full({1}, mine._nnz(), mine.options().layout(at::kStrided).dtype(at::kLong));
  const at::Tensor counts = at::empty({group.size()}, count.options());
  return HookStep::after(
      {group.all_gather_into_tensor_async(counts, count)},
      [&group, mine, counts, count, divisor]() -> HookStep {
        const at::Tensor host = counts.cpu();
        int64_t most = 1;
        for (int64_t i = 0; i < mine.sparse_dim(); ++i) most *= mine.size(i);
        std::vector<int64_t> numbers;
        for (int64_t i = 0; i < host.numel(); ++i) {
          numbers.push_back(host.const_data_ptr<int64_t>()[i]);
          if (numbers.back() < 0 || numbers.back() > most) {
            throw Error(absl::InvalidArgumentError(
                absl::StrCat("malformed sparse gradient from ", name_rank(static_cast<int>(i), group.ranks()),
                             ": got ", numbers.back(), " entries, expected at most ", most)));
          }
        }
        const int64_t largest = *std::max_element(numbers.begin(), numbers.end());
        if (largest == 0) return HookStep(mine);
        const at::Tensor indices = padded(mine._indices().t(), largest);
        const at::Tensor values = padded(mine._values(), largest);
        std::vector<int64_t> all_sizes = values.sizes().vec();
        all_sizes[0] *= group.size();
        const at::Tensor all_indices =
            at::empty({largest * group.size(), mine.sparse_dim()}, indices.options());
        const at::Tensor all_values = at::empty(all_sizes, values.options());
        return HookStep::locally_after(
            {group.all_gather_into_tensor_async(all_indices, indices),
             group.all_gather_into_tensor_async(all_values, values)},
            [mine, indices, values, all_indices, all_values, numbers, largest, divisor] {
              std::vector<at::Tensor> rows, parts;
              for (std::size_t i = 0; i < numbers.size(); ++i) {
                const int64_t begin = static_cast<int64_t>(i) * largest;
                rows.push_back(all_indices.narrow(0, begin, numbers[i]));
                parts.push_back(all_values.narrow(0, begin, numbers[i]));
              }
              // The constructor checks each index against the shape.
              at::Tensor sum = at::sparse_coo_tensor(at::cat(rows).t(), at::cat(parts), mine.sizes());
              sum = sum.coalesce();
              sum._values().div_(divisor);
              return HookStep(sum);
            });
      });
}

}  // namespace gradwire::collectives
