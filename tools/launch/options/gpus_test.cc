#include "gradwire/tools/launch/options/gpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace gradwire::tools {
namespace {

// A fixture with directories like those of the driver.
class CountVisibleGpus : public ::testing::Test {
 protected:
  CountVisibleGpus() {
    std::filesystem::create_directories(devices_);
    std::filesystem::create_directories(driver_);
    for (const char* other : {"null", "nvidiactl", "nvidia-uvm", "nvidia-modeset"}) add_device(other);
  }
  ~CountVisibleGpus() override { std::filesystem::remove_all(root_); }

  void add_device(const std::string& name) { std::ofstream(devices_ + "/" + name).put(' '); }

  int count(const std::optional<std::string>& chosen = std::nullopt) const {
    return count_visible_gpus(chosen, devices_, driver_);
  }

  const std::string root_ = ::testing::TempDir() + "/gpus";
  const std::string devices_ = root_ + "/dev", driver_ = root_ + "/proc";
};

TEST_F(CountVisibleGpus, WithoutADriverThereAreNone) {
  EXPECT_EQ(count(), 0);
  EXPECT_EQ(count("0,1"), 0);
  EXPECT_EQ(count_visible_gpus(std::nullopt, root_ + "/absent", root_ + "/absent"), 0);
}

TEST_F(CountVisibleGpus, DeviceFilesAreCounted) {
  for (const char* name : {"nvidia0", "nvidia3", "nvidia10"}) add_device(name);
  std::filesystem::create_directories(driver_ + "/0000:01:00.0");
  EXPECT_EQ(count(), 3);
}

TEST_F(CountVisibleGpus, DriversEntriesAreCountedWithoutDeviceFiles) {
  std::filesystem::create_directories(driver_ + "/0000:01:00.0");
  std::filesystem::create_directories(driver_ + "/0000:02:00.0");
  EXPECT_EQ(count(), 2);
}

TEST_F(CountVisibleGpus, VariableSelectsAsInCuda) {
  for (const char* name : {"nvidia0", "nvidia1", "nvidia2", "nvidia3"}) add_device(name);
  EXPECT_EQ(count("0,2"), 2);
  EXPECT_EQ(count(" 3 , 1 "), 2);
  EXPECT_EQ(count(""), 0);
  EXPECT_EQ(count("-1"), 0);
  EXPECT_EQ(count("NoDevFiles"), 0);
  EXPECT_EQ(count("0,1,-1,2"), 2);
  EXPECT_EQ(count("0,4,1"), 1);
  EXPECT_EQ(count("1,1"), 0);
  EXPECT_EQ(count("GPU-5ebe9f43,GPU-8fb1ac9a"), 2);
  EXPECT_EQ(count("MIG-GPU-8932f937/1/2"), 1);
}

TEST(ChooseDevice, EachWorkerHasAGpuOfItsOwn) {
  EXPECT_EQ(*choose_device(0, 3, 4), "cpu");
  EXPECT_EQ(*choose_device(4, 3, 4), "cuda:3");
  EXPECT_EQ(*choose_device(8, 0, 1), "cuda:0");
  const absl::Status status = choose_device(2, 0, 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4 workers and 2 visible GPUs"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace gradwire::tools
