// The checks of coalesced operations and batches of messages, of tensors whose dtype has no arithmetic or
// whose shape differs between ranks, of sparse tensors, and of groups inside the group.
#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/coalescing.h"
#include "gradwire/collectives/device_mesh.h"
#include "gradwire/collectives/nccl/nccl_check_operations.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/collectives/subgroups.h"

namespace gradwire::collectives::nccl_check {
namespace {

// The dtypes that NCCL reduces, directly or widened.
constexpr at::ScalarType kReduced[] = {at::kFloat, at::kDouble, at::kHalf,         at::kBFloat16,
                                       at::kByte,  at::kChar,   at::kShort,        at::kInt,
                                       at::kLong,  at::kBool,   at::kComplexFloat, at::kComplexDouble};
// Dtypes that are only moved.
constexpr at::ScalarType kOther[] = {at::kComplexHalf,     at::kFloat8_e4m3fn,   at::kFloat8_e5m2,
                                     at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz, at::kUInt16,
                                     at::kUInt32,          at::kUInt64};

void expect_refused(const std::string& what, const std::function<void()>& run) {
  const absl::Status status = error_of(run);
  check(status.code() == absl::StatusCode::kInvalidArgument, absl::StrCat(what, ": ", status.ToString()));
}

// Each reduction for each dtype in one operation. These are over a hundred calls, and an NCCL group takes 64,
// so the operation needs several of them.
void check_all_reduce_coalesced(const Group& group, int rank, int size, c10::Device device) {
  CoalescingManager together(group);
  Tensors results, wanted;
  std::vector<std::string> names;
  for (const at::ScalarType dtype : kReduced) {
    const bool whole = c10::isIntegralType(dtype, /*includeBool=*/true);
    std::vector<ReduceOp> ops = {ReduceOp::kSum};
    if (!c10::isComplexType(dtype))
      ops.insert(ops.end(), {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax});
    if (!whole) ops.push_back(ReduceOp::kAvg);
    if (whole) ops.insert(ops.end(), {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor});
    for (const ReduceOp op : ops) {
      results.push_back(values(rank, dtype).to(device));
      together.all_reduce(results.back(), op);
      wanted.push_back(reference(size, dtype, op));
      results.push_back(at::empty({3, 5}, results.back().options()));
      together.reduce_scatter(results.back(),
                              Tensors(static_cast<std::size_t>(size), values(rank, dtype).to(device)), op);
      wanted.push_back(reference(size, dtype, op));
      for (const char* const kind : {"all_reduce", "reduce_scatter"})
        names.push_back(absl::StrCat("coalesced ", kind, ", ", to_string(op), " of ", c10::toString(dtype)));
    }
  }
  together.start()->wait();
  for (std::size_t i = 0; i < results.size(); ++i) same(results[i], wanted[i], names[i]);

  Tensors list;
  for (const at::ScalarType dtype : kReduced) list.push_back(values(rank, dtype).to(device));
  all_reduce_coalesced(list, ReduceOp::kSum, group);
  for (const at::Tensor& tensor : list)
    same(tensor, reference(size, tensor.scalar_type(), ReduceOp::kSum), "all_reduce_coalesced");
  Tensors scaled = {values(rank, at::kHalf).to(device), values(rank, at::kFloat, {4, 3}).to(device).t()};
  all_reduce_coalesced_async(scaled, premul_sum(0.5), group)->wait();
  same(scaled[0], (reference(size, at::kFloat, ReduceOp::kSum) * 0.5).to(at::kHalf),
       "all_reduce_coalesced with a factor");
  same(scaled[1], reference(size, at::kFloat, ReduceOp::kSum, {4, 3}).t() * 0.5,
       "all_reduce_coalesced of a transposed tensor");
}

// All kinds of collectives together, with tensors of different dtypes and shapes.
void check_mixed_kinds(const Group& group, int rank, int size, c10::Device device) {
  CoalescingManager together(group);
  const at::Tensor reduced = values(rank, at::kBFloat16).to(device);
  const at::Tensor root = values(rank, at::kBool).to(device);
  const at::Tensor part = values(rank, at::kComplexFloat).to(device);
  const at::Tensor whole = at::zeros({size, 3, 5}, part.options());
  const at::Tensor sum = at::zeros({3, 5}, reduced.options());
  const at::Tensor empty = at::empty({0}, part.options());
  Tensors uneven, sent, exchanged;
  for (int i = 0; i < size; ++i) {
    uneven.push_back(at::zeros({i + 1, 2}, at::TensorOptions().dtype(at::kHalf).device(device)));
    sent.push_back(at::full({rank + i}, rank * 10.0 + i).to(device));
    exchanged.push_back(at::zeros_like(sent.back()));
  }
  together.all_reduce(reduced, ReduceOp::kAvg);
  together.broadcast(root, size - 1);
  together.all_gather_into_tensor(whole, part);
  together.reduce_scatter_tensor(
      sum, at::cat(Tensors(static_cast<std::size_t>(size), values(rank, at::kBFloat16).to(device))));
  together.all_gather(uneven, values(rank, at::kHalf, {rank + 1, 2}).to(device));
  together.all_to_all(exchanged, sent);
  together.all_reduce(empty);
  check(together.size() == 7, "CoalescingManager::size()");
  together.run();
  check(together.size() == 0, "CoalescingManager is empty after run()");
  same(reduced, reference(size, at::kBFloat16, ReduceOp::kAvg), "coalesced all_reduce");
  same_bits(root, values(size - 1, at::kBool), "coalesced broadcast");
  same(sum, reference(size, at::kBFloat16, ReduceOp::kSum), "coalesced reduce_scatter_tensor");
  for (int i = 0; i < size; ++i) {
    same_bits(whole[i], values(i, at::kComplexFloat), "coalesced all_gather_into_tensor");
    same_bits(uneven[i], values(i, at::kHalf, {i + 1, 2}), "coalesced all_gather of different shapes");
    same(exchanged[i], at::full({rank + i}, i * 10.0 + rank), "coalesced all_to_all");
  }
}

void check_lists(const Group& group, int rank, int size, c10::Device device) {
  const Tensors inputs = {values(rank, at::kFloat).to(device), values(rank, at::kBool, {7}).to(device)};
  std::vector<Tensors> lists;
  for (int i = 0; i < size; ++i) lists.push_back({at::zeros_like(inputs[0]), at::zeros_like(inputs[1])});
  all_gather_coalesced(lists, inputs, group);
  for (int i = 0; i < size; ++i) {
    same_bits(lists[i][0], values(i, at::kFloat), "all_gather_coalesced, floats");
    same_bits(lists[i][1], values(i, at::kBool, {7}), "all_gather_coalesced, bools");
  }
  Tensors wholes, sums;
  std::vector<Tensors> parts;
  for (const at::Tensor& input : inputs) {
    wholes.push_back(at::zeros(input.numel() * size, input.options()));
    sums.push_back(at::zeros_like(input));
    parts.push_back(Tensors(static_cast<std::size_t>(size), input));
  }
  all_gather_into_tensor_coalesced(wholes, {inputs[0].view({-1}), inputs[1]}, group);
  reduce_scatter_coalesced(sums, parts, ReduceOp::kMax, group);
  same(sums[0], reference(size, at::kFloat, ReduceOp::kMax), "reduce_scatter_coalesced, floats");
  same(sums[1], reference(size, at::kBool, ReduceOp::kMax, {7}), "reduce_scatter_coalesced, bools");
  for (int i = 0; i < size; ++i)
    same_bits(wholes[1].view({size, 7})[i], values(i, at::kBool, {7}), "all_gather_into_tensor_coalesced");
  Tensors into = {at::zeros({15}, inputs[0].options()), at::zeros_like(inputs[1])};
  reduce_scatter_tensor_coalesced(into, wholes, ReduceOp::kSum, group);
  same(into[0], values(rank, at::kFloat).view({-1}) * size, "reduce_scatter_tensor_coalesced, floats");
  same_bits(into[1], values(rank, at::kBool, {7}), "reduce_scatter_tensor_coalesced, bools");
}

// A refused call of a coalesced operation: nothing runs, and the group stays usable.
void check_refused(const Group& group, int rank, int size, c10::Device device) {
  const at::Tensor good = values(rank, at::kFloat).to(device);
  expect_refused("a coalesced sum of float8", [&] {
    all_reduce_coalesced({good, good.to(at::kFloat8_e5m2)}, ReduceOp::kSum, group);
  });
  expect_refused("coalesced bits of floats", [&] { all_reduce_coalesced({good}, ReduceOp::kBand, group); });
  expect_refused("coalesced tensors on the host and a GPU", [&] {
    all_reduce_coalesced({good, at::ones({2})}, ReduceOp::kSum, group);
  });
  expect_refused("no calls", [&] { all_reduce_coalesced({}, ReduceOp::kSum, group); });
  same_bits(good, values(rank, at::kFloat), "a refused operation does not change tensors");
  all_reduce_coalesced({good}, ReduceOp::kSum, group);
  same(good, reference(size, at::kFloat, ReduceOp::kSum), "the group is usable after refused calls");
}

void check_other_dtypes(const Group& group, int rank, int size, c10::Device device) {
  for (const at::ScalarType dtype : kOther) {
    const std::string name = c10::toString(dtype);
    const auto on_device = [&](int of) { return values(of, dtype).to(device); };
    at::Tensor tensor = on_device(rank);
    group->broadcast(tensor, size - 1);
    same_bits(tensor, values(size - 1, dtype), "broadcast of " + name);
    Tensors list;
    for (int i = 0; i < size; ++i) list.push_back(at::empty_like(tensor));
    group->all_gather(list, on_device(rank));
    for (int i = 0; i < size; ++i) same_bits(list[i], values(i, dtype), "all_gather of " + name);
    Tensors exchanged;
    for (int i = 0; i < size; ++i) exchanged.push_back(at::empty_like(tensor));
    group->all_to_all(exchanged, Tensors(static_cast<std::size_t>(size), on_device(rank)));
    for (int i = 0; i < size; ++i) same_bits(exchanged[i], values(i, dtype), "all_to_all of " + name);
    expect_refused("a sum of " + name, [&] { group->all_reduce(on_device(rank)); });
  }
}

// Rank r has r rows; rank 0 has none.
void check_uneven(const Group& group, int rank, int size, c10::Device device) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kBool, at::kComplexDouble}) {
    Tensors list;
    for (int i = 0; i < size; ++i)
      list.push_back(at::zeros({i, 3}, at::TensorOptions().dtype(dtype).device(device)));
    group->all_gather(list, values(rank, dtype, {rank, 3}).to(device));
    for (int i = 0; i < size; ++i) {
      same_bits(list[i], values(i, dtype, {i, 3}),
                absl::StrCat("all_gather of different shapes, ", c10::toString(dtype)));
    }
  }
  expect_refused("a list whose own entry has another shape", [&] {
    Tensors list(static_cast<std::size_t>(size), at::zeros({2}, at::TensorOptions().device(device)));
    group->all_gather(list, at::zeros({3}, list[0].options()));
  });
}

// Rank r has the rows r and 3, the latter twice.
at::Tensor sparse_values(int rank, at::ScalarType dtype) {
  const at::Tensor rows = at::tensor({int64_t{rank % 3}, int64_t{3}, int64_t{3}}).view({1, 3});
  return at::sparse_coo_tensor(rows, at::ones({3, 2}).to(dtype), {4, 2});
}

void check_sparse(const Group& group, int rank, int size, c10::Device device) {
  const auto wanted = [&](at::ScalarType dtype) {
    at::Tensor sum = at::zeros({4, 2}, at::kDouble);
    for (int i = 0; i < size; ++i) sum += sparse_values(i, at::kDouble).to_dense();
    return sum.to(dtype);
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kComplexFloat}) {
    at::Tensor tensor = sparse_values(rank, dtype).to(device);
    group->all_reduce(tensor);
    check(tensor.is_sparse() && tensor.is_coalesced() && tensor.device() == device,
          "a sparse sum is coalesced, on its device");
    same(tensor.cpu().to_dense(), wanted(dtype), absl::StrCat("all_reduce, sparse ", c10::toString(dtype)));
  }
  at::Tensor mean = sparse_values(rank, at::kFloat).to(device);
  group->all_reduce_async(mean, ReduceOp::kAvg)->wait();
  same(mean.cpu().to_dense(), wanted(at::kFloat) / size, "average of sparse tensors");
  at::Tensor nothing = at::sparse_coo_tensor(at::zeros({1, 0}, at::kLong), at::zeros({0, 2}), {4, 2});
  nothing = nothing.to(device);
  group->all_reduce(nothing);
  check(nothing._nnz() == 0, "all_reduce of sparse tensors without values");
}

// Each rank sends to the next one, both at the same time. NCCL has no message from a rank to itself.
void check_batch(const Group& group, int rank, int size, c10::Device device) {
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  Tensors got;
  std::vector<P2POp> messages;
  for (const at::ScalarType dtype : {at::kFloat, at::kBool, at::kFloat8_e4m3fn, at::kComplexHalf}) {
    messages.push_back({.tensor = values(rank, dtype).to(device), .peer = next, .group = group});
    got.push_back(at::empty_like(messages.back().tensor));
    messages.push_back({.kind = P2POp::Kind::kReceive, .tensor = got.back(), .peer = before, .group = group});
  }
  const auto run = [&] {
    for (const auto& work : batch_isend_irecv(messages)) work->wait();
  };
  if (size == 1) {
    expect_refused("messages from a rank to itself", run);
  } else {
    run();
    for (const at::Tensor& tensor : got)
      same_bits(tensor, values(before, tensor.scalar_type()), "batch_isend_irecv");
    if (rank == 0) send_object(std::string("text"), 1, group);
    std::string text;
    if (rank == 1) check(recv_object(text, 0, group) == 0 && text == "text", "send_object");
  }
  expect_refused("a batch with a peer outside of the group", [&] {
    messages[1].peer = size;
    batch_isend_irecv(messages);
  });
  group->barrier();
}

void check_groups(const Group& group, int rank, int size, c10::Device device) {
  const auto sum_is = [&](const Group& in, double wanted, const std::string& what) {
    at::Tensor tensor = at::ones({4}, at::TensorOptions().device(device));
    all_reduce_coalesced({tensor}, ReduceOp::kSum, in);
    same(tensor, at::full({4}, wanted), what);
  };
  sum_is(new_subgroups(1, group).own, 1, "new_subgroups");
  std::vector<int> all;
  for (int i = 0; i < size; ++i) all.push_back(i);
  sum_is(new_subgroups_by_enumeration({all}, {}, group).own, size, "new_subgroups_by_enumeration");
  sum_is(split_group(group, {all}), size, "split_group");
  const DeviceMesh mesh = init_device_mesh({1, size}, {"a", "b"}, group);
  sum_is(mesh.get_group("a"), 1, "a mesh, dimension of 1 rank");
  sum_is(mesh.get_group("b"), size, "a mesh, dimension of all ranks");
  check(mesh.get_local_rank("b") == rank, "DeviceMesh::get_local_rank");
}

}  // namespace

void check_together(const Group& group, int rank, int size, c10::Device device) {
  check_all_reduce_coalesced(group, rank, size, device);
  check_mixed_kinds(group, rank, size, device);
  check_lists(group, rank, size, device);
  check_refused(group, rank, size, device);
  check_other_dtypes(group, rank, size, device);
  check_uneven(group, rank, size, device);
  check_sparse(group, rank, size, device);
  check_batch(group, rank, size, device);
  check_groups(group, rank, size, device);
}

}  // namespace gradwire::collectives::nccl_check
