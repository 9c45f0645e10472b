#include "examples/data/dataset.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gradwire::examples {
namespace {

// An IDX file: its numbers in big-endian order, then `size` bytes. The first ones are `bytes`, the others
// zero.
void write_idx(const std::string& path, const std::vector<uint32_t>& numbers, const std::string& bytes,
               uint64_t size) {
  {
    std::ofstream file(path, std::ios::binary);
    for (uint32_t number : numbers) {
      for (int shift : {24, 16, 8, 0}) file.put(static_cast<char>(number >> shift));
    }
    file << bytes;
  }
  std::filesystem::resize_file(path, 4 * numbers.size() + size);
}

TEST(Digits, AreSplitByWritersAndScaled) {
  const Dataset digits = load_digits();
  EXPECT_EQ(digits.train.size() + digits.held_out.size(), 1797);
  EXPECT_EQ(digits.held_out.size(), 359);
  EXPECT_EQ(digits.train.images.sizes(), (at::IntArrayRef{1438, 64}));
  EXPECT_EQ(digits.train.images.max().item<float>(), 1.0F);
  EXPECT_EQ(digits.train.images.min().item<float>(), 0.0F);
  // The first line of the file is the digit zero. Its third pixel is 5 of 16.
  EXPECT_EQ(digits.train.labels[0].item<int64_t>(), 0);
  EXPECT_EQ(digits.train.images[0][2].item<float>(), 5.0F / 16.0F);
  EXPECT_EQ(digits.train.labels.max().item<int64_t>(), 9);
}

TEST(Digits, SharesPartitionTheSamples) {
  const Samples train = load_digits().train;
  const Samples first = train.share(0, 2);
  const Samples second = train.share(1, 2);
  EXPECT_EQ(first.size() + second.size(), train.size());
  EXPECT_TRUE(at::equal(second.images[0], train.images[1]));
}

TEST(Mnist, ReadsIdxFiles) {
  const std::string directory = std::string(std::getenv("TEST_TMPDIR")) + "/mnist";
  std::filesystem::create_directory(directory);
  for (const auto& [name, count] : {std::pair("train", 60000u), std::pair("t10k", 10000u)}) {
    write_idx(directory + "/" + name + "-images-idx3-ubyte", {2051, count, 28, 28}, "\xff",
              uint64_t{count} * 28 * 28);
    write_idx(directory + "/" + name + "-labels-idx1-ubyte", {2049, count}, "\x07", count);
  }
  const Dataset mnist = load_dataset(directory);
  EXPECT_EQ(mnist.features, 784);
  EXPECT_EQ(mnist.train.images.sizes(), (at::IntArrayRef{60000, 784}));
  EXPECT_EQ(mnist.held_out.size(), 10000);
  EXPECT_EQ(mnist.train.images[0][0].item<float>(), 1.0F);
  EXPECT_EQ(mnist.train.labels[0].item<int64_t>(), 7);
  EXPECT_THROW(load_dataset(directory + "/missing"), c10::Error);
}

}  // namespace
}  // namespace gradwire::examples
