#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/host/host_lists.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kSlotBytes = 4096;

// One memory file with `size` members.
std::vector<std::unique_ptr<HostMemory>> join_all(int size) {
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::unique_ptr<HostMemory>> members(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int index = 0; index < size; ++index) {
    threads.emplace_back([&, index] {
      auto joined =
          HostMemory::join({.index = index, .size = size, .store = store, .slot_bytes = kSlotBytes});
      ASSERT_TRUE(joined.ok()) << joined.status();
      members[static_cast<std::size_t>(index)] = *std::move(joined);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return members;
}

// Publishes a line of a hostile member in the first phase: all blocks are said to be in it, and the largest
// has `most` bytes.
void publish_line(HostMemory& memory, int member, uint64_t most, const std::vector<uint8_t>& sizes) {
  HostMemory::Line& line = memory.line(member, 1);
  const uint64_t word = (uint64_t{1} << 63) | most;
  std::memcpy(line.bytes, &word, sizeof word);
  std::memcpy(line.bytes + sizeof word, sizes.data(), sizes.size());
  line.sequence.store(1);
}

// Member 0 executes the operation. The test plays member 1, and writes its line itself.
TEST(HostAllToAll, BlockOutsideTheLineIsInvalid) {
  const auto members = join_all(2);
  // The sizes of the two blocks follow the size of the largest one. This line is too short for the first one.
  constexpr uint8_t kBlock = 50;
  publish_line(*members[1], 1, kBlock, {kBlock, 0});

  HostPhases phases(*members[0], 0, 2, {});
  std::array<char, kBlock> output{};
  const Span outputs[] = {{nullptr, 0}, {output.data(), output.size()}};
  const Span inputs[] = {{nullptr, 0}, {nullptr, 0}};
  const absl::Status status =
      HostAllToAll(phases, kSlotBytes / 2, outputs, inputs).run(Clock::system().now() + absl::Seconds(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "got a block of 50 bytes at position 10")) << status;
}

// The sizes that the earlier members' blocks have are read, too.
TEST(HostAllToAll, BlockIsBehindThoseOfEarlierMembers) {
  const auto members = join_all(3);
  for (const int hostile : {2, 0}) {
    publish_line(*members[static_cast<std::size_t>(hostile)], hostile, 44, {44, 4, 0});
  }
  HostPhases phases(*members[1], 1, 3, {});
  std::array<char, 4> output{};
  const Span outputs[] = {{nullptr, 0}, {nullptr, 0}, {output.data(), output.size()}};
  const Span inputs[] = {{nullptr, 0}, {nullptr, 0}, {nullptr, 0}};
  const absl::Status status =
      HostAllToAll(phases, kSlotBytes / 4, outputs, inputs).run(Clock::system().now() + absl::Seconds(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "got a block of 4 bytes at position 55")) << status;
}

// Not even the sizes of 60 blocks fit into a line.
TEST(HostAllToAll, LineInALargeGroupIsInvalid) {
  constexpr int kSize = 60;
  const auto members = join_all(kSize);
  publish_line(*members[0], 0, 1, {0});
  HostPhases phases(*members[kSize - 1], kSize - 1, kSize, {});
  const std::vector<Span> nothing(kSize);
  const absl::Status status = HostAllToAll(phases, kSlotBytes / kSize, nothing, nothing)
                                  .run(Clock::system().now() + absl::Seconds(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "because the group has 60 ranks")) << status;
}

// The test plays member 1, which seems to be in every phase already.
TEST(HostAllToAll, BlockWithoutEndFailsAtTheDeadline) {
  const auto members = join_all(2);
  for (const uint64_t phase : {0, 1}) {
    HostMemory::Line& line = members[1]->line(1, phase);
    constexpr uint64_t kEndless = uint64_t{1} << 62;
    std::memcpy(line.bytes, &kEndless, sizeof kEndless);
    line.sequence.store(std::numeric_limits<uint64_t>::max());
  }
  HostPhases phases(*members[0], 0, 2, {});
  const std::vector<Span> nothing(2);
  const absl::Status status = HostAllToAll(phases, kSlotBytes / 2, nothing, nothing)
                                  .run(Clock::system().now() + absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "a block of 4611686018427387904 bytes")) << status;
}

}  // namespace
}  // namespace gradwire::collectives::cpu
