#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tests/device_calls/device_kind.h"

// The tests of tests/device_calls on GPUs. With one GPU all their devices are cuda:0.
namespace gradwire::device_kind {
namespace {

// About a millisecond on a GPU of 2 GHz.
constexpr uint64_t kLongestDelay = 2'000'000;
// A stream that is held for longer goes on by itself, so that a call of the driver that waits for it ends.
constexpr absl::Duration kLongestHold = absl::Seconds(10);

// The state of delay(). Guarded, because handlers of several threads use it.
struct Delays {
  Mutex mutex;
  std::mt19937_64 random ABSL_GUARDED_BY(mutex);
};
Delays& delays() {
  static auto& all = *new Delays;
  return all;
}

// CUDA loads a kernel when it is launched first, and may wait for all streams then: also for one that a test
// holds. So this launches each kind of kernel that the tests use before they hold a stream.
void load_kernels() {
  for (int i = 0; i < 3; ++i) {
    const c10::cuda::CUDAGuard guard(device(i));
    at::Tensor x = on(i, at::ones({8, 8}));
    x = x * 2.0 + 1;
    x = (x * 3 - x).relu() / 2;
    (x + x).zero_();
    (x + 1).fill_(-7);
    x += x;
    (void)x.clone().sum();
    (void)at::zeros({8}, x.options());
    at::cuda::sleep(1);
    (void)x.cpu();
  }
}

int64_t bytes_in_use(c10::DeviceIndex index) {
  const auto total = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::cuda::CUDACachingAllocator::getDeviceStats(index).allocated_bytes[total].current;
}

}  // namespace

c10::DeviceType type() { return c10::kCUDA; }

c10::Device device(int index) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index % c10::cuda::device_count_ensure_non_zero())};
}

c10::Stream new_stream(int index) {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device(index).index()).unwrap();
}

void begin(uint64_t seed) {
  static const bool loaded = (load_kernels(), true);
  (void)loaded;
  MutexLock lock(delays().mutex);
  delays().random.seed(seed);
}

void delay(c10::Device device) {
  if (!device.is_cuda()) return;
  uint64_t cycles = 0;
  {
    MutexLock lock(delays().mutex);
    // Half of the time there is no delay, so that short and long kernels follow each other.
    const uint64_t drawn = delays().random();
    if (drawn % 2 == 0) cycles = drawn / 2 % kLongestDelay;
  }
  if (cycles == 0) return;
  const c10::cuda::CUDAGuard guard(device);
  at::cuda::sleep(static_cast<int64_t>(cycles));
}

// CUDA has no such counter.
uint64_t host_waits() { return 0; }

std::string leftovers() try {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  for (;;) {
    std::string left;
    // libtorch keeps memory for cuBLAS, which a test does not own.
    at::cuda::clearCublasWorkspaces();
    for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
      const c10::cuda::CUDAGuard guard(i);
      c10::cuda::device_synchronize();
      if (const int64_t bytes = bytes_in_use(i); bytes > 0) {
        absl::StrAppend(&left, bytes, " bytes of tensors on cuda:", static_cast<int>(i), "; ");
      }
    }
    if (left.empty() || absl::Now() > deadline) return left;
    absl::SleepFor(absl::Milliseconds(1));
  }
} catch (const std::exception& error) {
  return error.what();
}

// CUDA opens memory only in another process than the one that has allocated it.
std::shared_ptr<void> expect_ipc(const rpc::testing::Group& /*group*/, int64_t /*at_least*/) {
  return nullptr;
}

// The stream runs a function on the host, which waits until the hold ends.
struct Hold::State {
  struct Gate {
    Mutex mutex;
    CondVar opened;
    bool open ABSL_GUARDED_BY(mutex) = false;
    bool expired ABSL_GUARDED_BY(mutex) = false;
  };
  static void CUDART_CB wait_at(void* data) {
    const std::unique_ptr<std::shared_ptr<Gate>> gate(static_cast<std::shared_ptr<Gate>*>(data));
    const absl::Time deadline = absl::Now() + kLongestHold;
    MutexLock lock((*gate)->mutex);
    while (!(*gate)->open && absl::Now() < deadline) {
      (*gate)->opened.wait_for((*gate)->mutex, deadline - absl::Now());
    }
    (*gate)->expired = !(*gate)->open;
  }

  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
};

Hold::Hold(const c10::Stream& stream) : state_(new State) {
  const c10::cuda::CUDAGuard guard(stream.device());
  C10_CUDA_CHECK(cudaLaunchHostFunc(c10::cuda::CUDAStream(stream).stream(), &State::wait_at,
                                    new std::shared_ptr<State::Gate>(state_->gate)));
}

Hold::~Hold() {
  MutexLock lock(state_->gate->mutex);
  state_->gate->open = true;
  state_->gate->opened.notify_all();
  EXPECT_FALSE(state_->gate->expired) << "a call waited for the stream that the test holds";
}

}  // namespace gradwire::device_kind
