#include "gradwire/collectives/objects.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Ranks;

[[maybe_unused]] const bool objects_use_local_backend = (testing::use_local_backend(), true);

class Objects : public ::testing::TestWithParam<int> {};

TEST_P(Objects, EveryOperation) {
  const int size = GetParam();
  Ranks ranks(size);
  ranks.run([&](const Group& group) {
    const int rank = group->rank();
    const int last = size - 1;
    using Map = std::map<std::string, std::vector<int64_t>>;
    Map map;
    if (rank == last) map = {{"a", {1, 2}}, {"", {}}};
    broadcast_object(map, last, group);
    EXPECT_EQ(map, (Map{{"a", {1, 2}}, {"", {}}}));

    // Objects of different sizes.
    std::vector<std::string> texts = {"replaced"};
    all_gather_object(texts, std::string(1000 * rank, 'x'), group);
    ASSERT_EQ(texts.size(), static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) EXPECT_EQ(texts[i].size(), 1000u * i);

    gather_object(texts, absl::StrCat("from ", rank), last, group);
    EXPECT_EQ(texts.size(), rank == last ? static_cast<std::size_t>(size) : 0);
    if (rank == last) {
      EXPECT_EQ(texts[0], "from 0");
    }

    std::vector<int64_t> numbers;
    for (int i = 0; rank == last && i < size; ++i) numbers.push_back(10 * i);
    int64_t number = -1;
    scatter_object(number, numbers, last, group);
    EXPECT_EQ(number, 10 * rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Objects, ::testing::Values(1, 2, 3, 4));

TEST(ObjectsTest, TensorsInsideTravel) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    using Both = std::pair<std::string, std::vector<at::Tensor>>;
    Both both;
    if (group->rank() == 0) both = {"tensors", {at::arange(100'000), at::ones({2, 3}).t(), at::Tensor()}};
    broadcast_object(both, 0, group);
    EXPECT_EQ(both.first, "tensors");
    EXPECT_TRUE(both.second.at(0).equal(at::arange(100'000)));
    EXPECT_TRUE(both.second.at(1).equal(at::ones({3, 2})));
    EXPECT_FALSE(both.second.at(2).defined());
    // Each rank has its own copy: changing it does not change the other rank's tensor.
    both.second[0].add_(group->rank());
    group->barrier();
    EXPECT_EQ(both.second[0][0].item<int64_t>(), group->rank());
  });
}

TEST(ObjectsTest, AsynchronousOperationsWriteBeforeTheyEnd) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    std::string text = group->rank() == 1 ? "one" : "";
    std::vector<int64_t> all;
    std::vector<int64_t> gathered;
    int64_t own = 0;
    const auto a = broadcast_object_async(text, 1, group);
    const auto b = all_gather_object_async(all, int64_t{group->rank()}, group);
    const auto c = gather_object_async(gathered, int64_t{group->rank()}, 2, group);
    const auto d = scatter_object_async(
        own, group->rank() == 0 ? std::vector<int64_t>{7, 8, 9} : std::vector<int64_t>(), 0, group);
    for (const auto& work : {a, b, c, d}) work->wait();
    EXPECT_EQ(text, "one");
    EXPECT_THAT(all, ElementsAre(0, 1, 2));
    EXPECT_EQ(gathered.size(), group->rank() == 2 ? 3u : 0u);
    EXPECT_EQ(own, 7 + group->rank());
  });
}

TEST(ObjectsTest, ObjectThatCannotBeEncodedFailsOnAllRanks) {
  Ranks ranks(3);
  const auto results = ranks.results([](const Group& group) {
    // A tensor without memory cannot be sent.
    const at::Tensor tensor =
        group->rank() == 1 ? at::ones({2}, at::TensorOptions().device(at::kMeta)) : at::ones({2});
    std::vector<at::Tensor> all = {at::zeros({1})};
    try {
      all_gather_object(all, tensor, group);
    } catch (...) {
      EXPECT_EQ(all.size(), 1u);
      throw;
    }
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(result.ToString(),
                AllOf(HasSubstr("all_gather_object #0"), HasSubstr("rank 1 could not encode")));
  }
  EXPECT_THAT(results[1].ToString(), HasSubstr("meta"));
  ranks.run([](const Group& group) { group->barrier(); });
}

TEST(ObjectsTest, WrongTypeOrNumberIsRefused) {
  Ranks ranks(2);
  const auto results = ranks.results([](const Group& group) {
    std::string text = "text";
    int64_t number = 5;
    if (group->rank() == 0) {
      broadcast_object(text, 0, group);
    } else {
      broadcast_object(number, 0, group);
    }
  });
  EXPECT_TRUE(results[0].ok());
  EXPECT_THAT(results[1].ToString(), HasSubstr("INVALID_ARGUMENT"));
  int64_t number = 0;
  EXPECT_THROW(scatter_object(number, {1}, 0, ranks[0]), Error);
  EXPECT_THROW(scatter_object(number, {1, 2}, 0, ranks[1]), Error);
  EXPECT_THROW(broadcast_object(number, 2, ranks[0]), Error);
}

TEST(ObjectsTest, NonMembersAreLeftAlone) {
  Ranks ranks(2);
  ranks.run([](const Group& world) {
    const Group group = world->new_group({1});
    int64_t number = world->rank();
    std::vector<int64_t> list = {-1};
    broadcast_object(number, 1, group);
    all_gather_object(list, number, group);
    EXPECT_EQ(number, world->rank());
    EXPECT_THAT(list, ElementsAre(world->rank() == 1 ? 1 : -1));
  });
}

TEST(ObjectMessages, ObjectsAndListsGoFromRankToRank) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    using Map = std::map<std::string, std::vector<at::Tensor>>;
    if (group->rank() == 0) {
      send_object(std::string(100'000, 'x'), 2, group, 5);
      send_object_list(std::vector<std::string>{"a", "", "ccc"}, 2, group);
      send_object(Map{{"t", {at::arange(3), at::ones({1000})}}}, 1, group);
      return;
    }
    if (group->rank() == 1) {
      Map map;
      EXPECT_EQ(recv_object(map, 0, group), 0);
      EXPECT_TRUE(map.at("t")[1].equal(at::ones({1000})));
      send_object_list(std::vector<int64_t>{}, 2, group);
      return;
    }
    // The tag decides which message is received, not the order.
    std::vector<std::string> list = {"is replaced"};
    EXPECT_EQ(recv_object_list(list, 0, group), 0);
    EXPECT_THAT(list, ElementsAre("a", "", "ccc"));
    std::string text;
    EXPECT_EQ(recv_object(text, kAnySource, group, 5), 0);
    EXPECT_EQ(text.size(), 100'000u);
    std::vector<int64_t> numbers = {1};
    EXPECT_EQ(recv_object_list(numbers, kAnySource, group), 1);
    EXPECT_TRUE(numbers.empty());
  });
}

TEST(ObjectMessages, ListsAreBroadcastWithTheirLength) {
  Ranks ranks(3);
  ranks.run([](const Group& group) {
    std::vector<std::string> list(static_cast<std::size_t>(group->rank()), "own");
    broadcast_object_list(list, 2, group);
    EXPECT_THAT(list, ElementsAre("own", "own"));
    list.push_back(absl::StrCat(group->rank()));
    broadcast_object_list_async(list, 1, group)->wait();
    EXPECT_THAT(list, ElementsAre("own", "own", "1"));
  });
}

TEST(ObjectMessages, ObjectThatCannotBeEncodedFailsOnBothRanks) {
  Ranks ranks(2);
  const auto results = ranks.results([](const Group& group) {
    at::Tensor tensor = at::ones({2}, at::TensorOptions().device(at::kMeta));
    if (group->rank() == 0) {
      send_object(tensor, 1, group);
    } else {
      recv_object(tensor, 0, group);
    }
  });
  EXPECT_THAT(results[0].ToString(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("meta")));
  EXPECT_THAT(results[1].ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("rank 0 could not send its object")));
}

TEST(ObjectMessages, HostileSizesAndBytesAreRefused) {
  Ranks ranks(2);
  ranks.run([](const Group& group) {
    for (const int64_t size : {int64_t{-2}, INT64_MIN, kMaxObjectBytes + 1, INT64_MAX}) {
      if (group->rank() == 0) {
        group->send(at::full({1}, size, at::kLong), 1);
        continue;
      }
      std::string text;
      try {
        recv_object(text, 0, group);
        ADD_FAILURE() << size;
      } catch (const Error& error) {
        EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(error.what(), HasSubstr("invalid size of the object of rank 0"));
      }
    }
    if (group->rank() == 0) {
      group->send(at::full({1}, 16, at::kLong), 1);
      group->send(at::full({16}, 0x7f, at::kByte), 1);
    } else {
      std::string text;
      EXPECT_THROW(recv_object(text, 0, group), Error);
    }
  });
}

TEST(ObjectMessages, MissingSenderIsNamedAndNonMembersDoNothing) {
  Ranks ranks(2, {.timeout = absl::Seconds(2)});
  ranks.run([](const Group& world) {
    const Group group = world->new_group({1});
    if (world->rank() == 1) return;
    int64_t number = 7;
    EXPECT_EQ(recv_object(number, 1, group), -1);
    send_object(number, 1, group);
    EXPECT_EQ(number, 7);
  });
  const auto results = ranks.results([](const Group& group) {
    int64_t number = 0;
    if (group->rank() == 0) recv_object(number, 1, group);
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded) << results[0];
  EXPECT_THAT(results[0].ToString(), HasSubstr("rank 1"));
}

TEST(ObjectBytes, HostileBytesAreRefused) {
  const at::Tensor good = pack_object(std::vector<at::Tensor>{at::arange(100'000), at::ones({3})}).value();
  ASSERT_TRUE(unpack_object<std::vector<at::Tensor>>(good).ok());
  const auto refused = [](const at::Tensor& bytes) {
    return unpack_object<std::vector<at::Tensor>>(bytes).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  // The bytes are cut off at several places.
  for (int64_t length :
       {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, int64_t{20}, int64_t{40}, good.numel() - 1}) {
    EXPECT_TRUE(refused(good.slice(0, 0, length).clone())) << length;
  }
  const auto with_number = [&](std::size_t index, uint64_t value) {
    const at::Tensor bytes = good.clone();
    std::memcpy(static_cast<char*>(bytes.mutable_data_ptr()) + 8 * index, &value, sizeof(value));
    return bytes;
  };
  for (uint64_t value : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 40, ~uint64_t{0}}) {
    // Index 0 is the number of pieces, 1 the size of the payload, 2 the size of a buffer.
    for (std::size_t index = 0; index < 3; ++index) EXPECT_TRUE(refused(with_number(index, value))) << index;
  }
}

}  // namespace
}  // namespace gradwire::collectives
