#include "gradwire/transport/shm/memory/shared_memory.h"

#include <sys/resource.h>

#include <cstring>
#include <iostream>
#include <string>

#include "gmock/gmock.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/testing/limits.h"
#include "gtest/gtest.h"

// Limits of the process. Each test runs in a child.
namespace gradwire::transport {
namespace {

constexpr std::size_t kSize = std::size_t{1} << 20;

// Whether creating memory fails under a limit with a status that names it, and works when the limit is
// lifted. The status is printed otherwise.
bool names_limit(int resource, rlim_t value, const std::string& name) {
  Descriptor descriptor;
  absl::Status status;
  {
    const LimitScope limit(resource, value);
    status = SharedMemory::create(kSize, false, descriptor).status();
  }
  const bool named = is_local_shortage(status) && status.message().find(name) != std::string::npos;
  if (!named) std::cerr << status << "\n";
  return named && SharedMemory::create(kSize, false, descriptor).ok();
}

TEST(SharedMemoryLimits, SizeOfFiles) {
  EXPECT_EQ(status_in_child([] { return names_limit(RLIMIT_FSIZE, kSize / 2, "RLIMIT_FSIZE") ? 0 : 1; }), 0);
}

TEST(SharedMemoryLimits, NumberOfDescriptors) {
  EXPECT_EQ(status_in_child(
                [] { return names_limit(RLIMIT_NOFILE, no_free_descriptor(), "RLIMIT_NOFILE") ? 0 : 1; }),
            0);
}

TEST(SharedMemoryLimits, MemoryOfTheAllowedSizeIsCreated) {
  EXPECT_EQ(status_in_child([] {
              const LimitScope limit(RLIMIT_FSIZE, kSize);
              Descriptor descriptor;
              absl::StatusOr<SharedMemory> memory = SharedMemory::create(kSize, false, descriptor);
              if (!memory.ok()) return 1;
              std::memset(memory->data(), 1, kSize);
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace gradwire::transport
