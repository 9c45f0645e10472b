#include "gradwire/collectives/nccl/device_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RankRecord record(const std::string& host, std::vector<DeviceRecord> devices) {
  return {.process = {.space = host + ",pid:[1]", .id = 7, .started = 9}, .devices = std::move(devices)};
}

std::string refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(DeviceRecords, AreDecodedFromTheirText) {
  const auto back =
      decode(encode_record(record("host", {{"ab12", "0000:3b:00.0", 0}, {"", "0000:5e:00.0", 1}})));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->process.space, "host,pid:[1]");
  EXPECT_EQ(back->process.id, 7);
  EXPECT_EQ(back->process.started, 9U);
  ASSERT_EQ(back->devices.size(), 2U);
  EXPECT_EQ(back->devices[0].uuid, "ab12");
  EXPECT_EQ(back->devices[1].uuid, "");
  EXPECT_EQ(back->devices[1].bus, "0000:5e:00.0");
  EXPECT_EQ(back->devices[1].index, 1);
}

TEST(DeviceRecords, HostileTextIsRefused) {
  const std::string long_field(600, 'a');
  for (const std::string& text :
       {std::string(), std::string("a 1"), std::string("a 1 2"), std::string("a x 2\nu b 0"),
        std::string("a 1 2\nu b"), std::string("a 1 2\nu b -1"), std::string("a 1 2\nu b 99999999999"),
        std::string("a 1 2\n") + long_field + " b 0", std::string("a 1 2\nu \x01 0"),
        std::string("a 1 2\nu b 0\n"), std::string(1 << 20, '\n')}) {
    EXPECT_FALSE(decode(text).ok()) << text.substr(0, 40);
  }
  std::string many = "a 1 2";
  for (int i = 0; i < 128; ++i) many += "\nu b 0";
  EXPECT_TRUE(decode(many).ok());
  EXPECT_FALSE(decode(many + "\nu b 0").ok());
}

TEST(DeviceRecords, TwoRanksOnOneGpuAreNamedWithTheDeviceOnBoth) {
  const std::string text = refusal(
      check_devices({record("h", {{"aa", "0000:01:00.0", 0}}), record("h", {{"bb", "0000:02:00.0", 1}}),
                     record("h", {{"aa", "0000:01:00.0", 3}})},
                    {0, 4, 6}));
  EXPECT_THAT(text, AllOf(HasSubstr("ranks 0 and 6"), HasSubstr("0000:01:00.0"),
                          HasSubstr("cuda:0 of rank 0"), HasSubstr("cuda:3 of rank 6")));
}

TEST(DeviceRecords, OneGpuSeenFromTwoContainersIsOneGpu) {
  EXPECT_FALSE(
      check_devices({record("h", {{"aa", "0000:01:00.0", 0}}), record("x", {{"aa", "0000:09:00.0", 0}})},
                    {0, 1})
          .ok());
}

TEST(DeviceRecords, WithoutUuidHostAndBusIdentifyAGpu) {
  const RankRecord first = record("h", {{"", "0000:01:00.0", 0}});
  EXPECT_FALSE(check_devices({first, first}, {0, 1}).ok());
  EXPECT_TRUE(check_devices({first, record("g", {{"", "0000:01:00.0", 0}})}, {0, 1}).ok());
  EXPECT_TRUE(check_devices({first, record("h", {{"", "0000:02:00.0", 0}})}, {0, 1}).ok());
}

TEST(DeviceRecords, EqualBusOnDifferentGpusIsFine) {
  EXPECT_TRUE(
      check_devices({record("h", {{"aa", "0000:01:00.0", 0}}), record("g", {{"bb", "0000:01:00.0", 0}})},
                    {0, 1})
          .ok());
}

TEST(DeviceRecords, OneRankWithOneGpuTwice) {
  EXPECT_THAT(refusal(check_devices({record("h", {{"aa", "b", 0}, {"aa", "b", 1}})}, {5})),
              AllOf(HasSubstr("rank 5"), HasSubstr("twice")));
}

TEST(DeviceRecords, DifferentNumbersOfDevicesAreNamed) {
  EXPECT_THAT(refusal(check_devices(
                  {record("h", {{"aa", "b", 0}, {"bb", "c", 1}}), record("h", {{"cc", "d", 2}})}, {0, 1})),
              AllOf(HasSubstr("rank 1 has 1"), HasSubstr("rank 0 has 2")));
}

TEST(GatherRecords, AllRanksComeToTheSameError) {
  store::HashStore store;
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto found = gather_records({.store = store, .key = "k", .ranks = {0, 1, 2}, .index = rank},
                                        record("h", {{rank == 0 ? "aa" : "bb", "0000:01:00.0", 0}}));
      errors[rank] = std::string(found.status().message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors[0], HasSubstr("ranks 1 and 2"));
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[2]);
}

TEST(GatherRecords, MissingRanksAreNamed) {
  store::HashStore store;
  const auto found = gather_records({.store = store,
                                     .key = "k",
                                     .ranks = {0, 2, 5},
                                     .index = 1,
                                     .deadline = Clock::system().now() + absl::Milliseconds(20)},
                                    record("h", {{"aa", "b", 0}}));
  EXPECT_EQ(found.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("ranks 0, 5 did not arrive"));
}

TEST(GatherRecords, AnInterruptionEndsTheWait) {
  store::HashStore store;
  const auto found = gather_records({.store = store,
                                     .key = "k",
                                     .ranks = {0, 1},
                                     .index = 0,
                                     .interrupted = [] { return absl::AbortedError("stop"); }},
                                    record("h", {{"aa", "b", 0}}));
  EXPECT_EQ(found.status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace gradwire::collectives::nccl
