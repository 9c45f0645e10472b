// The tests that need a GPU, in one program, which can be copied to a machine that has one
// (tools/gpu_bundle). Without a GPU it prints the reason and exits with 77.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "gradwire/tests/gpu/two_processes.h"

int main(int argc, char** argv) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    std::printf("skipped: no GPU that CUDA can use (%s)\n",
                found == cudaSuccess ? "no GPU found" : cudaGetErrorString(found));
    return 77;
  }
  const std::string flag = gradwire::gpu_tests::kWorkerFlag;
  if (argc == 2 && absl::StartsWith(argv[1], flag)) {
    return gradwire::gpu_tests::run_worker(std::string(argv[1]).substr(flag.size()));
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
