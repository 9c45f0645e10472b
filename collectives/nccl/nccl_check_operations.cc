#include "gradwire/collectives/nccl/nccl_check_operations.h"

#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives::nccl_check {
namespace {

std::atomic<int> passed = 0;
std::atomic<int> failed = 0;

}  // namespace

int passes() { return passed; }
int failures() { return failed; }

void check(bool good, const std::string& what) {
  ++(good ? passed : failed);
  if (good) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

void run_world(const std::vector<int>& devices, absl::Duration timeout,
               const std::function<void(Group, int)>& body, const std::string& backend) {
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(devices.size()); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(devices[rank]));
        ProcessGroupOptions options;
        options.backend = backend;
        options.store = store;
        options.rank = rank;
        options.world_size = static_cast<int>(devices.size());
        options.timeout = timeout;
        options.device_id = devices[rank];
        const Group group = ProcessGroup::create(options);
        body(group, rank);
        group->destroy();
      } catch (const std::exception& error) {
        check(false, absl::StrCat("rank ", rank, ": ", error.what()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::Status error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

void sleep_on_device(absl::Duration time) {
  int kilohertz = 0;
  check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, c10::cuda::current_device()) == cudaSuccess,
        "the clock rate of the GPU");
  at::cuda::sleep(absl::ToInt64Milliseconds(time) * kilohertz);
}

void same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  const at::Tensor on_host = got.cpu();
  const bool shaped = on_host.sizes() == want.sizes() && on_host.scalar_type() == want.scalar_type();
  check(shaped && at::allclose(on_host.to(at::kComplexDouble), want.to(at::kComplexDouble), 1e-2, 1e-2),
        what);
}

void same_bits(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  const at::Tensor on_host = got.cpu().contiguous();
  const at::Tensor wanted = want.contiguous();
  check(on_host.sizes() == wanted.sizes() && on_host.scalar_type() == wanted.scalar_type() &&
            (wanted.nbytes() == 0 ||
             std::memcmp(on_host.const_data_ptr(), wanted.const_data_ptr(), wanted.nbytes()) == 0),
        what);
}

at::Tensor values(int rank, at::ScalarType dtype, at::IntArrayRef shape) {
  at::Tensor numbers = at::arange(at::empty(shape).numel(), at::kLong).view(shape);
  numbers = (numbers + rank).remainder(3) + (dtype == at::kBool ? 0 : 1);
  if (dtype == at::kBool) return numbers.remainder(2).to(at::kBool);
  return numbers.to(dtype);
}

at::Tensor reference(int size, at::ScalarType dtype, ReduceOp op, at::IntArrayRef shape) {
  Tensors all;
  for (int rank = 0; rank < size; ++rank) all.push_back(values(rank, dtype, shape));
  if (op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor) {
    at::Tensor bits = all[0];
    for (int rank = 1; rank < size; ++rank) {
      bits = op == ReduceOp::kBand  ? at::bitwise_and(bits, all[rank])
             : op == ReduceOp::kBor ? at::bitwise_or(bits, all[rank])
                                    : at::bitwise_xor(bits, all[rank]);
    }
    return bits;
  }
  const bool plain = !c10::isComplexType(dtype);
  const at::Tensor stack = at::stack(all).to(plain ? at::kDouble : at::kComplexDouble);
  const auto combined = [&] {
    switch (op) {
      case ReduceOp::kProduct:
        return stack.prod(0);
      case ReduceOp::kMin:
        return stack.amin(0);
      case ReduceOp::kMax:
        return stack.amax(0);
      case ReduceOp::kAvg:
        return stack.mean(0);
      default:
        return stack.sum(0);
    }
  };
  return combined().to(dtype);
}

namespace {

void check_reductions(const Group& group, int rank, int size, c10::Device device) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kChar, at::kShort, at::kInt,
        at::kLong, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                              ReduceOp::kAvg, ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
      const bool whole = c10::isIntegralType(dtype, /*includeBool=*/true);
      const bool plain = !c10::isComplexType(dtype);
      const bool bits = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
      if ((op == ReduceOp::kAvg && whole) || (bits && !whole) ||
          (!plain && op != ReduceOp::kSum && op != ReduceOp::kAvg))
        continue;
      const std::string what =
          absl::StrCat(to_string(op), " of ", c10::toString(dtype), " on ", size, " ranks");
      const at::Tensor want = reference(size, dtype, op);
      at::Tensor tensor = values(rank, dtype).to(device);
      group->all_reduce(tensor, op);
      same(tensor, want, "all_reduce " + what);
      tensor = values(rank, dtype).to(device);
      group->reduce(tensor, size - 1, op);
      same(tensor, rank == size - 1 ? want : values(rank, dtype), "reduce " + what);
      Tensors inputs;
      for (int i = 0; i < size; ++i) inputs.push_back(values(rank, dtype).to(device));
      tensor = at::empty_like(inputs[0]);
      group->reduce_scatter(tensor, inputs, op);
      same(tensor, want, "reduce_scatter " + what);
      tensor = at::empty_like(inputs[0]);
      group->reduce_scatter_tensor(tensor, at::cat(inputs), op);
      same(tensor, want, "reduce_scatter_tensor " + what);
    }
  }
  at::Tensor strided = values(rank, at::kFloat, {4, 3}).to(device).t();
  group->all_reduce(strided);
  same(strided, reference(size, at::kFloat, ReduceOp::kSum, {4, 3}).t(), "all_reduce of a transposed tensor");
  at::Tensor scalar = at::full({}, rank + 1.0).to(device);
  group->all_reduce(scalar);
  same(scalar, at::full({}, size * (size + 1) / 2.0), "all_reduce of a number");
  at::Tensor scaled = values(rank, at::kFloat).to(device);
  group->all_reduce(scaled, premul_sum(0.5));
  same(scaled, reference(size, at::kFloat, ReduceOp::kSum) * 0.5, "all_reduce with a factor");
  at::Tensor nothing = at::empty({0}, at::TensorOptions().device(device));
  group->all_reduce(nothing);
  at::Tensor no_bits = at::empty({0}, at::TensorOptions().dtype(at::kInt).device(device));
  group->all_reduce(no_bits, ReduceOp::kBxor);
  const absl::Status refused = error_of([&] {
    at::Tensor bits = values(rank, at::kFloat).to(device);
    group->all_reduce(bits, ReduceOp::kBand);
  });
  check(refused.code() == absl::StatusCode::kInvalidArgument, "bits of floats are refused");
}

void check_moves(const Group& group, int rank, int size, c10::Device device) {
  for (int root = 0; root < size; ++root) {
    at::Tensor tensor = values(rank, at::kHalf).to(device);
    group->broadcast(tensor, root);
    same(tensor, values(root, at::kHalf), "broadcast");
    Tensors list;
    for (int i = 0; i < size && rank == root; ++i) list.push_back(at::zeros({3, 5}, tensor.options()));
    group->gather(values(rank, at::kHalf).to(device), list, root);
    for (std::size_t i = 0; i < list.size(); ++i)
      same(list[i], values(static_cast<int>(i), at::kHalf), "gather");
    group->scatter(tensor, list, root);
    same(tensor, values(rank, at::kHalf), "scatter");
  }
  const at::Tensor mine = values(rank, at::kLong).to(device);
  Tensors list;
  for (int i = 0; i < size; ++i) list.push_back(at::zeros_like(mine));
  group->all_gather(list, mine);
  for (int i = 0; i < size; ++i) same(list[i], values(i, at::kLong), "all_gather");
  at::Tensor whole = at::zeros({size, 3, 5}, mine.options());
  group->all_gather_into_tensor(whole, mine);
  for (int i = 0; i < size; ++i) same(whole[i], values(i, at::kLong), "all_gather_into_tensor");
  // Rank r sends r + i rows to rank i, which may be none.
  Tensors inputs;
  Tensors outputs;
  for (int i = 0; i < size; ++i) {
    inputs.push_back(at::full({rank + i, 2}, rank * 10.0 + i).to(device));
    outputs.push_back(at::zeros({rank + i, 2}, inputs.back().options()));
  }
  group->all_to_all(outputs, inputs);
  for (int i = 0; i < size; ++i) same(outputs[i], at::full({rank + i, 2}, i * 10.0 + rank), "all_to_all");
  at::Tensor rows = at::full({size, 2}, static_cast<double>(rank)).to(device);
  at::Tensor exchanged = at::zeros_like(rows);
  group->all_to_all_single(exchanged, rows);
  same(exchanged, at::arange(size, at::kFloat).view({size, 1}).expand({size, 2}), "all_to_all_single");
  group->barrier({});
  group->barrier_async({static_cast<int>(device.index())})->wait();
  group->monitored_barrier();
}

// All messages are under way at the same time, in both directions, and the tags are received in another order
// than they are sent.
void check_messages(const Group& group, int rank, int size, c10::Device device) {
  if (size < 2) return;
  const int next = (rank + 1) % size;
  const int before = (rank + size - 1) % size;
  Tensors got;
  std::vector<std::shared_ptr<Work>> works;
  for (int tag = 0; tag < 2; ++tag) got.push_back(at::zeros({3}, at::TensorOptions().device(device)));
  // A strided tensor is received into temporary memory.
  got[1] = at::zeros({3, 2}, got[0].options()).select(1, 0);
  works.push_back(group->irecv(got[1], before, 1));
  works.push_back(group->irecv(got[0], before, 0));
  for (int tag = 0; tag < 2; ++tag) {
    works.push_back(group->isend(at::full({3}, rank * 2.0 + tag).to(device), next, tag));
  }
  at::Tensor between = at::ones({4}, at::TensorOptions().device(device));
  group->all_reduce(between);
  for (const auto& work : works) work->wait();
  for (int tag = 0; tag < 2; ++tag) same(got[tag], at::full({3}, before * 2.0 + tag), "messages with tags");
  same(between, at::full({4}, static_cast<double>(size)), "all_reduce while messages are under way");
}

// The object of a rank: objects of all ranks differ in their length, and have a tensor.
using Object = std::pair<std::string, at::Tensor>;
Object object_of(int rank) {
  return {std::string(static_cast<std::size_t>(rank) * 1000, 'x'), values(rank, at::kLong)};
}

void same_object(const Object& got, int rank, const std::string& what) {
  check(got.first == object_of(rank).first, what + ": text");
  check(got.second.defined(), what + ": defined");
  if (got.second.defined()) same(got.second, object_of(rank).second, what + ": tensor");
}

void check_objects(const Group& group, int rank, int size) {
  for (int root = 0; root < size; ++root) {
    Object object = object_of(rank);
    broadcast_object(object, root, group);
    same_object(object, root, "broadcast_object");
    std::vector<Object> list;
    gather_object(list, object_of(rank), root, group);
    check(static_cast<int>(list.size()) == (rank == root ? size : 0), "gather_object: number of objects");
    for (std::size_t i = 0; i < list.size(); ++i) same_object(list[i], static_cast<int>(i), "gather_object");
    // The gathered objects are given back, in the opposite order.
    std::reverse(list.begin(), list.end());
    scatter_object(object, list, root, group);
    same_object(object, size - 1 - rank, "scatter_object");
  }
  std::vector<Object> list;
  all_gather_object(list, object_of(rank), group);
  check(static_cast<int>(list.size()) == size, "all_gather_object: number of objects");
  for (std::size_t i = 0; i < list.size(); ++i)
    same_object(list[i], static_cast<int>(i), "all_gather_object");
  // Beside an operation on tensors that has not ended.
  at::Tensor tensor = at::ones({4}, at::TensorOptions().device(at::kCUDA));
  const auto reduced = group->all_reduce_async(tensor);
  Object object = object_of(rank);
  const auto work = broadcast_object_async(object, size - 1, group);
  work->wait();
  reduced->wait();
  same_object(object, size - 1, "broadcast_object_async");
  same(tensor, at::full({4}, static_cast<double>(size)), "all_reduce beside an object");
}

}  // namespace

void check_world(int size) {
  std::vector<int> devices;
  for (int i = 0; i < size; ++i) devices.push_back(i);
  run_world(devices, absl::Minutes(2), [size](const Group& group, int rank) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    check_reductions(group, rank, size, device);
    check_moves(group, rank, size, device);
    check_objects(group, rank, size);
    check_messages(group, rank, size, device);
    check_together(group, rank, size, device);
    const absl::Status refused = error_of([&] {
      at::Tensor tensor = at::zeros({1}, at::TensorOptions().device(device));
      group->recv(tensor);
    });
    check(refused.code() == absl::StatusCode::kInvalidArgument, "any source is refused");
  });
  std::printf("%d ranks: done\n", size);
}

void check_several_devices(int count) {
  run_world({0}, absl::Minutes(2), [count](const Group& group, int) {
    Tensors tensors;
    std::vector<Tensors> lists(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
      tensors.push_back(values(i, at::kFloat).to(device));
      for (int j = 0; j < count; ++j) lists[i].push_back(at::zeros_like(tensors[i]));
    }
    group->all_gather_multigpu_async(lists, tensors)->wait();
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) same(lists[i][j], values(j, at::kFloat), "all_gather_multigpu");
    }
    group->all_reduce_multigpu_async(tensors, ReduceOp::kSum)->wait();
    for (const at::Tensor& tensor : tensors) {
      same(tensor, reference(count, at::kFloat, ReduceOp::kSum), "all_reduce_multigpu");
    }
    for (int i = 0; i < count; ++i) tensors[i].copy_(values(i, at::kFloat));
    group->reduce_multigpu_async(tensors, 0, ReduceOp::kProduct)->wait();
    same(tensors[0], reference(count, at::kFloat, ReduceOp::kProduct), "reduce_multigpu");
    for (int i = 1; i < count; ++i) same(tensors[i], values(i, at::kFloat), "reduce_multigpu, other tensors");
    group->broadcast_multigpu_async(tensors, 0)->wait();
    for (const at::Tensor& tensor : tensors) {
      same(tensor, reference(count, at::kFloat, ReduceOp::kProduct), "broadcast_multigpu");
    }
  });
  std::printf("%d devices of one rank: done\n", count);
}

}  // namespace gradwire::collectives::nccl_check
