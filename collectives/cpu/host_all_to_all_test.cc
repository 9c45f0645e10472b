#include "gradwire/collectives/cpu/host_all_to_all.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kSlotBytes = 4096;

// Member 0 executes the operation. The test plays member 1, and writes its line itself.
TEST(HostAllToAll, BlockOutsideTheLineIsInvalid) {
  const auto store = std::make_shared<store::HashStore>();
  const auto join = [&](int index) {
    auto joined = HostMemory::join({.index = index, .size = 2, .store = store, .slot_bytes = kSlotBytes});
    EXPECT_TRUE(joined.ok()) << joined.status();
    return *std::move(joined);
  };
  std::unique_ptr<HostMemory> mine, other;
  std::thread second([&] { other = join(1); });
  mine = join(0);
  second.join();

  // The sizes of the two blocks follow the size of the largest one. This line is too short for the first one.
  constexpr uint8_t kBlock = 50;
  HostMemory::Line& line = other->line(1, 1);
  const uint64_t word = (uint64_t{1} << 63) | kBlock;
  std::memcpy(line.bytes, &word, sizeof word);
  line.bytes[sizeof word] = static_cast<char>(kBlock);
  line.bytes[sizeof word + 1] = 0;
  line.sequence.store(1);

  HostPhases phases(*mine, 0, 2, {});
  std::array<char, kBlock> output{};
  const Span outputs[] = {{nullptr, 0}, {output.data(), output.size()}};
  const Span inputs[] = {{nullptr, 0}, {nullptr, 0}};
  const absl::Status status =
      HostAllToAll(phases, kSlotBytes / 2, outputs, inputs).run(Clock::system().now() + absl::Seconds(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "got a block of 50 bytes at position 10")) << status;
}

}  // namespace
}  // namespace gradwire::collectives::cpu
