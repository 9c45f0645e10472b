#include "gradwire/data_parallel/distributed_sampler.h"

#include <gtest/gtest.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <sstream>

#include "gradwire/base/error.h"

namespace gradwire::data_parallel {
namespace {

using Indices = std::vector<std::size_t>;

TEST(DistributedSampler, GivesBatchesUntilTheEpochIsOver) {
  DistributedSampler sampler(7, {.num_replicas = 2, .rank = 1, .shuffle = false});
  EXPECT_EQ(sampler.size(), 4u);
  EXPECT_EQ(sampler.next(3), (Indices{1, 3, 5}));
  EXPECT_EQ(sampler.next(3), (Indices{0}));
  EXPECT_EQ(sampler.next(3), std::nullopt);
  sampler.reset();
  EXPECT_EQ(sampler.next(2), (Indices{1, 3}));
  sampler.reset(2);
  EXPECT_EQ(sampler.next(2), (Indices{1}));
}

TEST(DistributedSampler, CopiesUseTheNewEpochAfterTheirReset) {
  DistributedSampler sampler(100, {.num_replicas = 2, .rank = 0});
  DistributedSampler loaders = sampler;
  const auto first = loaders.next(50);
  sampler.set_epoch(1);
  EXPECT_EQ(loaders.next(1), std::nullopt);
  loaders.reset();
  const auto second = loaders.next(50);
  EXPECT_NE(first, second);
  EXPECT_EQ(sampler.next(50), second);
}

TEST(DistributedSampler, ResumesWhereItWasSaved) {
  DistributedSampler sampler(10, {.num_replicas = 1, .rank = 0});
  sampler.set_epoch(4);
  (void)sampler.next(3);
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  DistributedSampler resumed(10, {.num_replicas = 1, .rank = 0});
  resumed.load(in);
  EXPECT_EQ(resumed.epoch(), 4u);
  EXPECT_EQ(resumed.next(10), sampler.next(10));
}

TEST(DistributedSampler, InvalidRanksAreRefused) {
  EXPECT_THROW(DistributedSampler(10, {.num_replicas = 2, .rank = 2}), Error);
  EXPECT_THROW(DistributedSampler(10, {.num_replicas = 0, .rank = 0}), Error);
  EXPECT_THROW(DistributedSampler(10, {.num_replicas = 2}), Error);
  EXPECT_EQ(DistributedSampler(10).size(), 10u);
}

}  // namespace
}  // namespace gradwire::data_parallel
