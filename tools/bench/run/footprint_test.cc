#include "gradwire/tools/bench/run/footprint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "absl/base/attributes.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

// Not instrumented: for every byte that an instrumented function writes, ThreadSanitizer allocates two bytes
// of its own, which would be counted too.
ABSL_ATTRIBUTE_NO_SANITIZE_THREAD void touch(void* memory, std::size_t bytes) {
  const std::size_t page = sysconf(_SC_PAGESIZE);
  for (std::size_t at = 0; at < bytes; at += page) static_cast<volatile char*>(memory)[at] = 1;
}

TEST(Footprint, CountsWhatWasOpenedAndTouchedSince) {
  constexpr std::size_t kBytes = 8 << 20;
  const Footprint before = footprint();
  const int shared_fd = memfd_create("footprint_test", MFD_CLOEXEC);
  ASSERT_GE(shared_fd, 0);
  ASSERT_EQ(ftruncate(shared_fd, kBytes), 0);
  void* shared = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
  void* own = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  ASSERT_NE(own, MAP_FAILED);
  touch(shared, kBytes);
  touch(own, kBytes / 2);

  const std::vector<Figure> growth = growth_per_peer(before, 2).figures;
  EXPECT_EQ(figure(growth, "descriptors_per_peer"), 0.5);
  // The test touched all 8 MiB of the shared mapping, of which no other process has a part, and half of the
  // private one: 12 MiB for two peers. What the test itself allocates is far below a mebibyte.
  EXPECT_NEAR(figure(growth, "memory_per_peer_kb"), 6 << 10, 512);

  munmap(shared, kBytes);
  munmap(own, kBytes);
  close(shared_fd);
}

}  // namespace
}  // namespace gradwire::bench
