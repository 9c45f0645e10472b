#include "gradwire/device/tensors_in.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>

namespace gradwire::device {
namespace {

// A device that every build of libtorch has besides the CPU; its tensors have no memory.
const at::Device kMeta(at::kMeta);

TEST(OnDevice, MovesTensorsInContainers) {
  const at::Tensor one = at::ones({2});
  EXPECT_EQ(on_device(one, kMeta).device(), kMeta);
  EXPECT_FALSE(on_device(at::Tensor(), kMeta).defined());

  const auto nested = on_device(
      std::map<std::string, std::vector<std::optional<at::Tensor>>>{{"a", {one, std::nullopt}}}, kMeta);
  EXPECT_EQ(nested.at("a")[0]->device(), kMeta);
  EXPECT_FALSE(nested.at("a")[1].has_value());

  const auto [tensor, number] = on_device(std::tuple<at::Tensor, int>(one, 3), kMeta);
  EXPECT_EQ(tensor.device(), kMeta);
  EXPECT_EQ(number, 3);
  EXPECT_EQ(on_device(std::pair<int, at::Tensor>(1, one), kMeta).second.device(), kMeta);
  EXPECT_EQ(on_device(std::array<at::Tensor, 2>{one, one}, kMeta)[1].device(), kMeta);
}

TEST(OnDevice, ReturnsOtherValuesUnchanged) {
  const std::vector<int> numbers = {1, 2};
  EXPECT_EQ(&on_device(numbers, kMeta), &numbers);
  const at::Tensor one = at::ones({2});
  // A tuple of references belongs to the caller.
  EXPECT_TRUE(std::get<0>(on_device(std::tie(one), kMeta)).is_cpu());
}

}  // namespace
}  // namespace gradwire::device
