// Checks the nccl backend on a machine with G GPUs: every operation on 1 to G ranks, compared with results
// from the CPU; the order of operations with the caller's streams; calls that it must refuse; timeouts,
// aborts and ranks that leave. Prints a line for each part, then "N passed, N failed", and exits with 1 if a
// check failed. Without a GPU, or with a driver that CUDA cannot use, it only makes and destroys groups, and
// prints the reason.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/collectives/nccl/nccl_check_operations.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives::nccl_check {
namespace {

void check_one_gpu_twice() {
  run_world({0, 0}, absl::Minutes(1), [](const Group& group, int) {
    const absl::Status status = error_of([&] {
      at::Tensor tensor = at::ones({4}, at::TensorOptions().device(at::kCUDA, 0));
      group->all_reduce(tensor);
    });
    check(status.code() == absl::StatusCode::kInvalidArgument &&
              absl::StrCat(status.message()).find("ranks 0 and 1") != std::string::npos,
          absl::StrCat("two ranks on one GPU: ", status.ToString()));
  });
  std::printf("two ranks on one GPU: refused, as NCCL does not support it\n");
}

// A flag from one rank to the other, which is in the same process.
class Flag {
 public:
  void raise() { raised_ = true; }
  // Waits for the flag, for at most half a minute.
  void wait() const {
    for (int i = 0; i < 3000 && !raised_; ++i) absl::SleepFor(absl::Milliseconds(10));
  }

 private:
  std::atomic<bool> raised_ = false;
};

enum class End { kDeadline, kAbort, kLeaves };

std::string to_string(End end) {
  return end == End::kDeadline ? "deadline" : end == End::kAbort ? "abort" : "the other leaves";
}

void check_end(End end, const absl::Status& status, const std::string& what) {
  const auto wanted = end == End::kDeadline ? absl::StatusCode::kDeadlineExceeded
                      : end == End::kAbort  ? absl::StatusCode::kAborted
                                            : absl::StatusCode::kUnavailable;
  const bool named = end == End::kAbort || absl::StrCat(status.message()).find("rank 1") != std::string::npos;
  check(status.code() == wanted && named, absl::StrCat(what, ", ", to_string(end), ": ", status.ToString()));
}

// Rank 1 does not arrive while rank 0 makes the communicator.
void check_absent_rank(End end) {
  Flag over;
  run_world({0, 0}, absl::Seconds(end == End::kDeadline ? 2 : 60), [&](const Group& group, int rank) {
    if (rank == 1) {
      if (end != End::kLeaves) over.wait();
      return;
    }
    std::thread other;
    if (end == End::kAbort) other = std::thread([group] { group->abort("requested by the test"); });
    const absl::Status status = error_of([&] {
      at::Tensor tensor = at::ones({4}, at::TensorOptions().device(at::kCUDA, 0));
      group->all_reduce(tensor);
    });
    over.raise();
    if (other.joinable()) other.join();
    check_end(end, status, "a rank that does not arrive");
  });
  std::printf("a rank that does not arrive, %s: done\n", to_string(end).c_str());
}

// Checks the end of a kernel that waits: rank 1 does not take part in the second all_reduce.
void check_watchdog(End end) {
  Flag over;
  run_world({0, 1}, absl::Seconds(end == End::kDeadline ? 4 : 60), [&](const Group& group, int rank) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    at::Tensor tensor = at::ones({1 << 20}, at::TensorOptions().device(device));
    group->all_reduce(tensor);
    c10::cuda::device_synchronize();
    if (rank == 1) {
      if (end == End::kLeaves) return;
      over.wait();
      // Rank 1 learns of the failure when it polls the store next.
      absl::SleepFor(absl::Seconds(2));
      const absl::Status status = error_of([&] { group->all_reduce(tensor); });
      check(status.code() == absl::StatusCode::kAborted,
            absl::StrCat("the other rank's operations fail: ", status.ToString()));
      return;
    }
    const auto work = group->all_reduce_async(tensor);
    if (end == End::kAbort) group->abort("requested by the test");
    std::exception_ptr error;
    for (int i = 0; i < 3000 && error == nullptr; ++i) {
      error = work->exception();
      absl::SleepFor(absl::Milliseconds(10));
    }
    over.raise();
    check(error != nullptr, "the watchdog ends a kernel that waits");
    if (error == nullptr) return;
    check_end(end, error_of([&] { std::rethrow_exception(error); }), "a kernel that waits");
    // The device is still usable.
    c10::cuda::device_synchronize();
  });
  std::printf("an operation that the other rank does not join, %s: done\n", to_string(end).c_str());
}

// Without a GPU, groups can still be made and destroyed, and their operations fail with errors.
void check_without_gpu() {
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status status = error_of([&] {
        const Group group = ProcessGroup::create(
            {.backend = "nccl", .timeout = absl::Seconds(20), .world_size = 2, .rank = rank, .store = store});
        const Group other = group->new_group();
        const absl::Status refused = error_of([&] { group->all_reduce(at::ones({2})); });
        check(refused.code() == absl::StatusCode::kInvalidArgument, "tensors on the CPU are refused");
        check(!error_of([&] { other->barrier(); }).ok(), "a barrier needs a GPU");
        group->destroy();
      });
      check(status.ok(), absl::StrCat("groups without a GPU: ", status.ToString()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int finish() {
  std::printf("%d passed, %d failed\n", passes(), failures());
  return failures() == 0 ? 0 : 1;
}

int run() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  check(is_nccl_available(), "is_nccl_available()");
  if (found != cudaSuccess || count == 0) {
    check_without_gpu();
    std::printf("skipped: no GPU that CUDA can use (%s)\n",
                found == cudaSuccess ? "no GPU found" : cudaGetErrorString(found));
    return finish();
  }
  std::printf("%d GPUs\n", count);
  check_one_gpu_twice();
  for (const End end : {End::kDeadline, End::kAbort, End::kLeaves}) check_absent_rank(end);
  for (int size = 1; size <= count; ++size) {
    check_world(size);
    check_streams(size);
  }
  if (count >= 2) {
    check_several_devices(count);
    for (const End end : {End::kDeadline, End::kAbort, End::kLeaves}) check_watchdog(end);
  } else {
    std::printf("skipped: checks that need two GPUs\n");
  }
  return finish();
}

}  // namespace
}  // namespace gradwire::collectives::nccl_check

int main() { return gradwire::collectives::nccl_check::run(); }
