#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/transport/shm/memory/arena_owner.h"
#include "gradwire/transport/shm/memory/arena_peer.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Connects the two sides of an arena directly.
class Arena : public ::testing::Test {
 protected:
  void make(std::size_t max_bytes, std::size_t max_idle_bytes = 0, ArenaOwner::Options options = {}) {
    peer_ = std::make_unique<ArenaPeer>(max_bytes);
    options.max_bytes = max_bytes;
    options.max_idle_bytes = max_idle_bytes;
    options.announce = [this](const SegmentPacket& packet, const Descriptor& memory) {
      if (announcements_fail_) return false;
      const absl::Status added = peer_->add(packet, memory);
      EXPECT_TRUE(added.ok()) << added;
      ++announced_;
      return true;
    };
    options.retract = [this](const DropPacket& packet) {
      EXPECT_TRUE(peer_->drop(packet.segment).ok());
      ++dropped_;
      return true;
    };
    owner_ = std::make_shared<ArenaOwner>(std::move(options));
  }

  // Takes, fills and sends a block, and returns the receiver's buffer.
  Buffer pass(std::size_t size, int byte) {
    auto block = owner_->take(size);
    EXPECT_TRUE(block.has_value());
    if (!block.has_value()) return Buffer();
    std::memset(block->data, byte, size);
    owner_->commit(*block);
    auto buffer = peer_->take(block->name, size, pool_);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *buffer : Buffer();
  }

  BufferPool pool_;
  std::unique_ptr<ArenaPeer> peer_;
  std::shared_ptr<ArenaOwner> owner_;
  bool announcements_fail_ = false;
  int announced_ = 0;
  int dropped_ = 0;
};

bool is_filled(const Buffer& buffer, int byte) {
  const char* data = static_cast<const char*>(buffer.data());
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    if (data[i] != static_cast<char>(byte)) return false;
  }
  return true;
}

TEST_F(Arena, ReceiverSeesTheBytesOfTheSender) {
  make(256 * kMiB);
  std::vector<Buffer> buffers;
  int byte = 0;
  for (std::size_t size : {std::size_t{1}, std::size_t{4'096}, std::size_t{4'097}, std::size_t{65'536},
                           kMiB - 1, kMiB, kMiB + 1, 3 * kMiB, 20 * kMiB + 5}) {
    for (int i = 0; i < 3; ++i) {
      buffers.push_back(pass(size, ++byte));
      EXPECT_EQ(buffers.back().size(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % 64, 0);
    }
  }
  byte = 0;
  for (const Buffer& buffer : buffers) EXPECT_TRUE(is_filled(buffer, ++byte)) << byte;
}

TEST_F(Arena, ReleasedBlockIsUsedAgain) {
  make(64 * kMiB);
  void* first = nullptr;
  for (int i = 0; i < 100; ++i) {
    const Buffer buffer = pass(3 * kMiB, i);
    if (i == 0) first = buffer.data();
    EXPECT_EQ(buffer.data(), first);
  }
  EXPECT_EQ(announced_, 1);
}

TEST_F(Arena, BlockThatWasReleasedLastIsUsedFirst) {
  make(64 * kMiB);
  Buffer a = pass(2 * kMiB, 1);
  Buffer b = pass(2 * kMiB, 2);
  void* const b_data = b.data();
  a = Buffer();
  b = Buffer();
  EXPECT_EQ(pass(2 * kMiB, 3).data(), b_data);
}

TEST_F(Arena, ArenaIsExhaustedWhenTheReceiverKeepsAllBlocks) {
  make(10 * kMiB);
  std::vector<Buffer> kept;
  while (auto block = owner_->take(kMiB)) {
    owner_->commit(*block);
    kept.push_back(*peer_->take(block->name, kMiB, pool_));
    ASSERT_LT(kept.size(), 20);
  }
  EXPECT_GE(kept.size(), 8);
  EXPECT_LE(owner_->mapped_bytes(), 10 * kMiB);
  EXPECT_FALSE(owner_->take(kMiB).has_value());
  EXPECT_FALSE(owner_->take(11 * kMiB).has_value());
  EXPECT_FALSE(owner_->take(~std::size_t{0}).has_value());
  kept.pop_back();
  EXPECT_TRUE(owner_->take(kMiB).has_value());
}

TEST_F(Arena, BlocksReleasedInAnyOrderAreFound) {
  make(2 * kMiB);
  for (int round = 0; round < 5; ++round) {
    std::vector<Buffer> kept;
    for (int i = 0; i < 100; ++i) kept.push_back(pass(10'000, i));
    std::vector<Buffer> every_other;
    for (int i = 0; i < 100; i += 2) every_other.push_back(kept[i]);
    kept.clear();
    for (int i = 0; i < 30; ++i) kept.push_back(pass(10'000, i));
  }
}

TEST_F(Arena, SegmentsOfUnusedSizesAreFreedForOtherSizes) {
  make(8 * kMiB);
  for (int i = 0; i < 3; ++i) pass((2 + i / 2) * kMiB, 1);
  { const Buffer large = pass(7 * kMiB, 2); }
  EXPECT_GT(dropped_, 0);
  EXPECT_LE(owner_->mapped_bytes(), 8 * kMiB);
  pass(4'096, 3);
}

TEST_F(Arena, IdleSegmentsAreFreed) {
  make(64 * kMiB);
  Buffer kept = pass(4 * kMiB, 1);
  pass(6 * kMiB, 2);
  EXPECT_TRUE(owner_->trim());
  EXPECT_EQ(dropped_, 0) << "used since the last time";
  EXPECT_TRUE(owner_->trim());
  EXPECT_EQ(dropped_, 1);
  EXPECT_TRUE(is_filled(kept, 1));
  kept = Buffer();
  EXPECT_FALSE(owner_->trim());
  EXPECT_EQ(owner_->mapped_bytes(), 0);
  EXPECT_TRUE(is_filled(pass(6 * kMiB, 3), 3));
}

TEST_F(Arena, IdleMemoryUpToTheLimitIsKept) {
  make(64 * kMiB, 3 * kMiB);
  pass(2 * kMiB, 1);
  pass(6 * kMiB, 2);
  owner_->trim();
  EXPECT_TRUE(owner_->trim());
  EXPECT_EQ(dropped_, 1);
  EXPECT_LE(owner_->mapped_bytes(), 3 * kMiB);
}

TEST_F(Arena, ArenasShareALimitOfIdleMemory) {
  ArenaOwner::Options options;
  options.all_mapped_bytes = std::make_shared<std::atomic<int64_t>>(0);
  options.all_arenas = std::make_shared<std::atomic<int64_t>>(0);
  options.max_idle_bytes_of_all = 10 * kMiB;
  std::vector<std::pair<std::unique_ptr<ArenaPeer>, std::shared_ptr<ArenaOwner>>> arenas;
  const auto trim_all = [&] {
    for (const auto& [peer, owner] : arenas) {
      // The fixture passes packets to the current peer.
      peer_.reset(peer.get());
      owner->trim();
      (void)peer_.release();
    }
  };
  for (int i = 0; i < 20; ++i) {
    make(64 * kMiB, 4 * kMiB, options);
    pass(kMiB, i);
    arenas.emplace_back(std::move(peer_), std::move(owner_));
  }
  EXPECT_EQ(*options.all_arenas, 20);
  trim_all();
  trim_all();
  // A share is less than a segment, until half of the arenas have none.
  EXPECT_GT(*options.all_mapped_bytes, 0);
  EXPECT_LE(*options.all_mapped_bytes, static_cast<int64_t>(10 * kMiB));
  arenas.clear();
  EXPECT_EQ(*options.all_arenas, 0);
}

TEST_F(Arena, ArenaThatIsNotUsedForLongKeepsNothing) {
  make(64 * kMiB, 4 * kMiB);
  pass(kMiB, 1);
  for (int i = 0; i < 3 * ArenaOwner::kTrimsUntilEmpty; ++i) {
    EXPECT_TRUE(owner_->trim());
    if (i % 3 == 0) pass(kMiB, i);
  }
  int trims = 1;
  while (owner_->trim()) ++trims;
  EXPECT_LE(trims, ArenaOwner::kTrimsUntilEmpty + 1);
  EXPECT_GE(trims, ArenaOwner::kTrimsUntilEmpty - 2);
  EXPECT_EQ(owner_->mapped_bytes(), 0);
  EXPECT_TRUE(is_filled(pass(kMiB, 3), 3));
}

TEST_F(Arena, SegmentThatCannotBeAnnouncedIsNotUsed) {
  make(64 * kMiB);
  announcements_fail_ = true;
  EXPECT_FALSE(owner_->take(kMiB).has_value());
  EXPECT_EQ(owner_->mapped_bytes(), 0);
  announcements_fail_ = false;
  EXPECT_TRUE(owner_->take(kMiB).has_value());
}

TEST_F(Arena, ALeasedBlockIsClaimedByItsSoleOwnerAlone) {
  make(64 * kMiB);
  auto leased = owner_->lease(kMiB);
  ASSERT_TRUE(leased.has_value());
  void* const data = leased->data();
  std::memset(data, 7, kMiB);
  {
    const Buffer shared = *leased;
    EXPECT_FALSE(owner_->claim(*leased).has_value());
  }
  EXPECT_FALSE(owner_->claim(Buffer(data, kMiB, std::make_shared<int>(0))).has_value());
  auto block = owner_->claim(*leased);
  ASSERT_TRUE(block.has_value());
  EXPECT_FALSE(owner_->claim(*leased).has_value()) << "twice";
  Buffer received = *peer_->take(block->name, kMiB, pool_);
  EXPECT_TRUE(is_filled(received, 7));
  // The end of the lease has no effect after the claim.
  leased.reset();
  EXPECT_NE(owner_->take(kMiB)->data, data);
  EXPECT_TRUE(is_filled(received, 7));
}

TEST_F(Arena, AnOldLeaseDoesNotEndTheBlocksNextUse) {
  make(64 * kMiB);
  auto old = owner_->lease(3 * kMiB);
  auto block = owner_->claim(*old);
  ASSERT_TRUE(block.has_value());
  peer_->take(block->name, 1, pool_)->owner();
  auto next = owner_->lease(3 * kMiB);
  ASSERT_EQ(next->data(), block->data);
  EXPECT_FALSE(owner_->claim(*old).has_value());
  old.reset();
  auto other = owner_->lease(3 * kMiB);
  EXPECT_NE(other->data(), next->data());
}

TEST_F(Arena, ReceiverSendsABlockBackWithItsNewContents) {
  make(64 * kMiB);
  auto leased = owner_->lease(3 * kMiB);
  char* const data = static_cast<char*>(leased->data());
  for (int round = 0; round < 10; ++round) {
    const Buffer mine(data, 3 * kMiB, std::exchange(leased, absl::nullopt)->owner());
    auto block = owner_->claim(mine);
    ASSERT_TRUE(block.has_value());
    Buffer received = *peer_->take(block->name, 3 * kMiB, pool_);
    std::memset(received.data(), round, received.size());
    auto name = peer_->claim(received);
    ASSERT_EQ(name, block->name);
    EXPECT_FALSE(peer_->claim(received).has_value()) << "twice";
    received = Buffer();
    leased = owner_->take_back(*name, 3 * kMiB);
    ASSERT_TRUE(leased.has_value());
    EXPECT_EQ(leased->data(), data);
    EXPECT_EQ(leased->sharing(), Buffer::Sharing::kForeign);
    EXPECT_TRUE(is_filled(*leased, round));
    EXPECT_FALSE(owner_->take_back(*name, 3 * kMiB).has_value()) << "twice";
    EXPECT_NE(owner_->lease(3 * kMiB)->data(), data);
  }
  leased.reset();
  EXPECT_EQ(owner_->lease(3 * kMiB)->data(), data);
}

TEST_F(Arena, AReceivedBlockIsClaimedByItsSoleOwnerAlone) {
  make(64 * kMiB);
  Buffer received = pass(3 * kMiB, 1);
  char* const data = static_cast<char*>(received.data());
  {
    const Buffer shared = received;
    EXPECT_FALSE(peer_->claim(received).has_value());
  }
  const auto over = [&](char* at, std::size_t size, Buffer::Sharing sharing) {
    // The pointer does not count as an owner.
    return Buffer(at, size, std::exchange(received, Buffer()).owner(), sharing);
  };
  Buffer part = over(data + 64, kMiB, Buffer::Sharing::kOwned);
  EXPECT_FALSE(peer_->claim(part).has_value());
  received = std::move(part);
  Buffer borrowed = over(data, kMiB, Buffer::Sharing::kBorrowed);
  EXPECT_FALSE(peer_->claim(borrowed).has_value());
  received = std::move(borrowed);
  EXPECT_FALSE(peer_->claim(Buffer(data, kMiB, std::make_shared<int>(0))).has_value());
  EXPECT_FALSE(peer_->claim(Buffer()).has_value());
  Buffer shorter = over(data, kMiB, Buffer::Sharing::kOwned);
  EXPECT_FALSE(ArenaPeer(64 * kMiB).claim(shorter).has_value()) << "of another connection";
  const auto name = peer_->claim(shorter);
  ASSERT_TRUE(name.has_value());
  EXPECT_TRUE(is_filled(*owner_->take_back(*name, kMiB), 1));
}

TEST_F(Arena, OnlyBlocksThatTheReceiverUsesAreTakenBack) {
  make(64 * kMiB);
  const auto name = [](uint32_t segment, uint32_t index) { return BlockName{segment, index}.encode(); };
  EXPECT_FALSE(owner_->take_back(name(1, 0), 1).has_value());
  const auto taken = owner_->take(10'000);
  EXPECT_FALSE(owner_->take_back(taken->name, 1).has_value()) << "is being filled";
  owner_->commit(*taken);
  const BlockName block = BlockName::decode(taken->name);
  EXPECT_FALSE(owner_->take_back(name(block.segment, block.index + 1), 1).has_value()) << "free";
  EXPECT_FALSE(owner_->take_back(name(block.segment, 1'000'000), 1).has_value());
  EXPECT_FALSE(owner_->take_back(name(block.segment + 1, block.index), 1).has_value());
  EXPECT_FALSE(owner_->take_back(taken->name, 0).has_value());
  EXPECT_FALSE(owner_->take_back(taken->name, kMiB).has_value());
  EXPECT_FALSE(owner_->take_back(taken->name, ~std::size_t{0}).has_value());
  auto back = owner_->take_back(taken->name, 10'000);
  ASSERT_TRUE(back.has_value());
  EXPECT_FALSE(owner_->take_back(taken->name, 1).has_value()) << "leased";
  back.reset();
  EXPECT_FALSE(owner_->take_back(taken->name, 1).has_value()) << "free again";
  // A leased block keeps the segment after the end.
  const auto leased = owner_->lease(10'000);
  const auto sent = owner_->take(10'000);
  owner_->commit(*sent);
  ASSERT_EQ(BlockName::decode(sent->name).segment, block.segment);
  owner_->close();
  EXPECT_FALSE(owner_->take_back(sent->name, 1).has_value()) << "closed";
}

TEST_F(Arena, BlocksComeBackInAnyOrder) {
  make(64 * kMiB);
  constexpr int kBlocks = 1'000;
  std::vector<uint64_t> names;
  for (int i = 0; i < kBlocks; ++i) names.push_back(*peer_->claim(pass(5'000, i)));
  // Every third block from the oldest on, then the others from the newest on; a third of them stay leased.
  std::vector<Buffer> kept;
  for (int i = 0; i < kBlocks; i += 3) kept.push_back(*owner_->take_back(names[i], 5'000));
  for (int i = kBlocks - 1; i >= 0; --i) {
    if (i % 3 != 0) EXPECT_TRUE(is_filled(*owner_->take_back(names[i], 5'000), i)) << i;
  }
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(is_filled(kept[i], static_cast<int>(3 * i))) << i;
  for (const uint64_t name : names) EXPECT_FALSE(owner_->take_back(name, 1).has_value());
}

TEST_F(Arena, MarkOfABlockThatWasSentBackIsIgnored) {
  make(64 * kMiB);
  Buffer received = pass(3 * kMiB, 1);
  void* const data = received.data();
  const auto name = peer_->claim(received);
  auto back = owner_->take_back(*name, 3 * kMiB);
  ASSERT_TRUE(back.has_value());
  // A hostile receiver marks the block as well.
  { const Buffer again = *peer_->take(*name, 1, pool_); }
  EXPECT_TRUE(owner_->trim());
  Buffer other = pass(3 * kMiB, 2);
  EXPECT_NE(other.data(), data);
  EXPECT_TRUE(is_filled(*back, 1));
}

TEST_F(Arena, LeaseThatIsNotSentIsFreed) {
  make(64 * kMiB);
  void* const data = owner_->lease(3 * kMiB)->data();
  EXPECT_EQ(owner_->lease(3 * kMiB)->data(), data);
}

TEST_F(Arena, BuffersAndLeasesOutliveBothSides) {
  make(64 * kMiB);
  Buffer received = pass(3 * kMiB, 9);
  auto leased = owner_->lease(3 * kMiB);
  owner_->close();
  EXPECT_FALSE(owner_->take(1).has_value());
  EXPECT_FALSE(owner_->claim(*leased).has_value());
  owner_.reset();
  peer_.reset();
  EXPECT_TRUE(is_filled(received, 9));
  std::memset(received.data(), 1, received.size());
  std::memset(leased->data(), 1, leased->size());
}

// The sender sees that a block is free before the receiver's thread has destroyed the owner of the buffer. A
// weak_ptr holds the receiver there, as a preempted thread would be held.
TEST_F(Arena, SegmentWhoseUsesHaveEndedMakesRoomBeforeItsOwnersAreDestroyed) {
  make(4 * kMiB);
  std::vector<std::weak_ptr<void>> delayed;
  for (int i = 0; i < 5; ++i) {
    // A segment of one size needs the room of the segment of the other size. The fixture checks that the
    // receiver accepts both.
    const Buffer buffer = pass(i % 2 == 0 ? 2 * kMiB : 3 * kMiB, i);
    ASSERT_GT(buffer.size(), 0U);
    delayed.push_back(buffer.owner());
  }
  EXPECT_EQ(announced_, 5);
  EXPECT_EQ(dropped_, 4);
}

TEST_F(Arena, BlockThatWasSentBackMakesRoomBeforeItsOwnerIsDestroyed) {
  make(4 * kMiB);
  const Buffer received = pass(2 * kMiB, 1);
  const auto name = peer_->claim(received);
  ASSERT_TRUE(name.has_value());
  owner_->take_back(*name, 1).reset();
  EXPECT_TRUE(is_filled(pass(3 * kMiB, 2), 2));
  EXPECT_EQ(dropped_, 1);
}

TEST_F(Arena, SegmentsThatTheSenderDropsInUseCountUntilTheUsesEnd) {
  make(4 * kMiB);
  Descriptor descriptor;
  ASSERT_TRUE(SharedMemory::create(2 * kMiB, false, descriptor).ok());
  SegmentPacket packet;
  packet.bytes = 2 * kMiB;
  packet.block_bytes = 4'096;
  packet.blocks = 10;
  std::vector<Buffer> used;
  for (uint32_t id = 1; id <= 2; ++id) {
    packet.segment = id;
    ASSERT_TRUE(peer_->add(packet, descriptor).ok());
    for (uint32_t block = 0; block < 2; ++block) {
      used.push_back(*peer_->take(BlockName{id, block}.encode(), 1, pool_));
    }
    ASSERT_TRUE(peer_->drop(id).ok());
  }
  packet.segment = 3;
  EXPECT_EQ(peer_->add(packet, descriptor).code(), absl::StatusCode::kInvalidArgument);
  used.pop_back();
  EXPECT_EQ(peer_->add(packet, descriptor).code(), absl::StatusCode::kInvalidArgument) << "one use is left";
  used.pop_back();
  EXPECT_TRUE(peer_->add(packet, descriptor).ok());
}

TEST_F(Arena, PeerRejectsInvalidSegmentsAndBlocks) {
  make(4 * kMiB);
  Descriptor descriptor;
  auto memory = SharedMemory::create(2 * kMiB, false, descriptor);
  ASSERT_TRUE(memory.ok());
  auto packet = [](uint64_t bytes, uint64_t block_bytes, uint64_t blocks) {
    SegmentPacket result;
    result.segment = 5;
    result.bytes = bytes;
    result.block_bytes = block_bytes;
    result.blocks = blocks;
    return result;
  };
  for (const SegmentPacket& wrong :
       {packet(2 * kMiB, 4'096, 0), packet(2 * kMiB, 0, 10), packet(2 * kMiB, 4'095, 10),
        packet(2 * kMiB, kMiB, 2), packet(2 * kMiB, uint64_t{1} << 63, 2),
        packet(2 * kMiB, 64, uint64_t{1} << 58), packet(kMiB, 4'096, 10), packet(4 * kMiB, 4'096, 10),
        packet(8 * kMiB, 4'096, 10), packet(~uint64_t{0}, 4'096, 10)}) {
    EXPECT_EQ(peer_->add(wrong, descriptor).code(), absl::StatusCode::kInvalidArgument) << wrong.bytes;
  }
  ASSERT_TRUE(peer_->add(packet(2 * kMiB, 4'096, 10), descriptor).ok());
  EXPECT_FALSE(peer_->add(packet(2 * kMiB, 4'096, 10), descriptor).ok()) << "the same id twice";
  const auto name = [](uint32_t segment, uint32_t index) { return BlockName{segment, index}.encode(); };
  EXPECT_TRUE(peer_->take(name(5, 9), 4'096, pool_).ok());
  for (auto [block, size] : std::vector<std::pair<uint64_t, uint64_t>>{{name(5, 10), 1},
                                                                       {name(5, ~0u), 1},
                                                                       {name(4, 0), 1},
                                                                       {name(5, 0), 4'097},
                                                                       {name(5, 0), 0},
                                                                       {name(5, 0), ~uint64_t{0}}}) {
    EXPECT_EQ(peer_->take(block, size, pool_).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(peer_->drop(4).ok());
  // A segment that is dropped but still held counts against the limit.
  const Buffer held = *peer_->take(name(5, 0), 1, pool_);
  ASSERT_TRUE(peer_->drop(5).ok());
  EXPECT_FALSE(peer_->drop(5).ok());
  ASSERT_TRUE(peer_->add(packet(2 * kMiB, 4'096, 10), descriptor).ok());
  SegmentPacket third = packet(2 * kMiB, 4'096, 10);
  third.segment = 6;
  EXPECT_FALSE(peer_->add(third, descriptor).ok());
}

}  // namespace
}  // namespace gradwire::transport
