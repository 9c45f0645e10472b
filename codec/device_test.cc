#include "gradwire/codec/device.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace gradwire::rpc {
namespace {

// A class like at::Device.
struct Foreign {
  Foreign(const std::string& name) : name(name) {}
  std::string str() const { return name; }
  bool has_index() const { return name.find(':') != std::string::npos; }
  std::string name;
};

TEST(DeviceTest, NamesAreReadAndWritten) {
  EXPECT_EQ(Device().str(), "cpu");
  EXPECT_TRUE(Device("cpu").is_cpu());
  EXPECT_EQ(Device("cpu:0"), Device("cpu"));
  EXPECT_EQ(Device("cuda").str(), "cuda:0");
  EXPECT_EQ(Device("cuda:12").index(), 12);
  EXPECT_EQ(Device("cuda:12").kind(), "cuda");
  for (const char* bad :
       {"", ":", "cuda:", "cuda:x", "cuda:-1", "cuda:128", "cpu:1", "CUDA:0", "cu da", "cuda:0:1"}) {
    EXPECT_EQ(Device::parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THROW(Device("cpu:7"), std::invalid_argument);
}

TEST(DeviceTest, ConvertsFromAndToAForeignDevice) {
  const DeviceMap map = {{Foreign("cuda:1"), Foreign("cuda:0")}};
  EXPECT_EQ(to_string(map), "{cuda:1 -> cuda:0}");
  const Foreign back = map.begin()->first;
  EXPECT_EQ(back.name, "cuda:1");
}

TEST(DeviceTest, AMapHasAnInverseIfItIsOneToOne) {
  const DeviceMap map = {{"cuda:0", "cuda:1"}, {"cpu", "cuda:0"}};
  absl::StatusOr<DeviceMap> back = inverse(map);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(to_string(*back), "{cuda:0 -> cpu, cuda:1 -> cuda:0}");
  const absl::Status twice = inverse({{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:1"}}).status();
  EXPECT_EQ(twice.message(),
            "the device map {cuda:0 -> cuda:1, cuda:1 -> cuda:1} is not one to one: cuda:1 occurs twice");
  EXPECT_EQ(to_string(std::vector<Device>{"cuda:0", "cpu"}), "[cuda:0, cpu]");
}

}  // namespace
}  // namespace gradwire::rpc
