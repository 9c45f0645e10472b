#include "gradwire/codec/torch/operator_argument.h"

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradwire/codec/codec_test_util.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using c10::IValue;

// The encoded form of `argument`, without the bytes of tensors.
template <class A>
std::string encoded(A&& argument) {
  TestSender sender;
  proto::Value value;
  const absl::Status status =
      OperatorArgumentCodec<std::decay_t<A>>::encode(std::forward<A>(argument), sender.encoder(), value);
  EXPECT_TRUE(status.ok()) << status;
  return value.DebugString();
}

// Checks that `argument` has the same encoding as the IValue of `value`.
#define EXPECT_TRAVELS_AS(argument, value) EXPECT_EQ(encoded(argument), encoded(IValue(value)))

TEST(OperatorArgumentTest, PlainValuesTravelAsIValuesDo) {
  EXPECT_TRAVELS_AS(true, true);
  EXPECT_TRAVELS_AS(uint8_t{200}, int64_t{200});
  EXPECT_TRAVELS_AS(-7, int64_t{-7});
  EXPECT_TRAVELS_AS(1.5f, 1.5);
  EXPECT_TRAVELS_AS(at::kDouble, static_cast<int64_t>(at::kDouble));
  EXPECT_TRAVELS_AS(c10::complex<float>(1, -2), c10::complex<double>(1, -2));
  EXPECT_TRAVELS_AS("text", "text");
  EXPECT_TRAVELS_AS(std::string_view("text"), "text");
  EXPECT_TRAVELS_AS(std::string("te\0xt", 5), std::string("te\0xt", 5));
  EXPECT_TRAVELS_AS(at::Device("cuda:1"), at::Device("cuda:1"));
  EXPECT_TRAVELS_AS(at::Scalar(3), at::Scalar(3));
  EXPECT_TRAVELS_AS(at::Scalar(0.5), at::Scalar(0.5));
  EXPECT_TRAVELS_AS(at::ones({3}), at::ones({3}));
  EXPECT_TRAVELS_AS(at::Tensor(), at::Tensor());
  EXPECT_TRAVELS_AS(IValue("text"), "text");
  EXPECT_EQ(encoded(std::nullopt), encoded(IValue()));
  char text[] = "cuda";
  EXPECT_TRAVELS_AS(text, "cuda");
}

TEST(OperatorArgumentTest, ListsTravelAsIValuesDo) {
  EXPECT_TRAVELS_AS((std::vector<int>{1, 2}), (std::vector<int64_t>{1, 2}));
  EXPECT_TRAVELS_AS(at::IntArrayRef({1, 2}), (std::vector<int64_t>{1, 2}));
  EXPECT_TRAVELS_AS(std::vector<int>(), std::vector<int64_t>());
  EXPECT_TRAVELS_AS((std::vector<float>{1.5f}), (std::vector<double>{1.5}));
  EXPECT_TRAVELS_AS((std::vector<bool>{true, false}), c10::List<bool>({true, false}));
  EXPECT_TRAVELS_AS(std::vector<bool>(), c10::List<bool>());
  EXPECT_TRAVELS_AS(std::vector<at::Tensor>{at::ones({2})}, std::vector<at::Tensor>{at::ones({2})});
  EXPECT_TRAVELS_AS(std::vector<at::Tensor>(), std::vector<at::Tensor>());
  EXPECT_TRAVELS_AS((std::vector<const char*>{"a", "b"}), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRAVELS_AS(std::vector<std::string>(), std::vector<std::string>());
  EXPECT_TRAVELS_AS((std::vector<at::ScalarType>{at::kInt}), std::vector<int64_t>{3});
  EXPECT_TRAVELS_AS((std::vector<c10::complex<double>>{{1, 2}}), c10::List<c10::complex<double>>({{1, 2}}));
  EXPECT_TRAVELS_AS((std::vector<std::optional<at::Tensor>>{at::ones({2}), std::nullopt}),
                    c10::List<std::optional<at::Tensor>>({at::ones({2}), std::nullopt}));
  EXPECT_TRAVELS_AS((std::vector<std::vector<int>>{{1}, {}}),
                    c10::List<c10::List<int64_t>>({c10::List<int64_t>({1}), c10::List<int64_t>()}));
  c10::impl::GenericList any(c10::AnyType::get());
  any.push_back(IValue(1));
  any.push_back(IValue("two"));
  EXPECT_TRAVELS_AS((std::vector<IValue>{1, "two"}), any);
  EXPECT_TRAVELS_AS(std::vector<at::Scalar>{1}, c10::List<at::Scalar>({at::Scalar(1)}));
  EXPECT_TRAVELS_AS((std::vector<std::tuple<int, double>>{{1, 0.5}}),
                    (c10::List<std::tuple<int64_t, double>>({{1, 0.5}})));
}

TEST(OperatorArgumentTest, DictionariesTuplesAndOptionalsTravelAsIValuesDo) {
  c10::Dict<std::string, double> prices;
  prices.insert("a", 1.5);
  EXPECT_TRAVELS_AS((std::map<std::string, float>{{"a", 1.5f}}), prices);
  EXPECT_TRAVELS_AS((std::unordered_map<std::string, float>{{"a", 1.5f}}), prices);
  c10::Dict<int64_t, c10::List<int64_t>> lists;
  lists.insert(1, c10::List<int64_t>({2, 3}));
  EXPECT_TRAVELS_AS((std::map<int, std::vector<int>>{{1, {2, 3}}}), lists);
  EXPECT_TRAVELS_AS((std::tuple<int, std::string, at::Tensor>(1, "two", at::ones({3}))),
                    (std::tuple<int64_t, std::string, at::Tensor>(1, "two", at::ones({3}))));
  EXPECT_TRAVELS_AS(std::tuple<>(), std::tuple<>());
  EXPECT_TRAVELS_AS(std::optional<int>(3), int64_t{3});
  EXPECT_EQ(encoded(std::optional<int>()), encoded(IValue()));
}

TEST(OperatorArgumentTest, TypeThatConvertsToAnIValueIsAnArgument) {
  const c10::List<int64_t> list({1, 2});
  EXPECT_TRAVELS_AS(list, list);
  EXPECT_TRAVELS_AS((std::vector<c10::List<int64_t>>{list}), (c10::List<c10::List<int64_t>>({list})));
}

TEST(OperatorArgumentTest, TensorGivenAwayIsNotCopied) {
  at::Tensor x = at::ones({1000});
  void* const memory = x.data_ptr();
  TestSender sender;
  ASSERT_TRUE(OperatorArgumentCodec<at::Tensor>::encode(std::move(x), sender.encoder(),
                                                        *sender.payload().add_values())
                  .ok());
  EXPECT_EQ(value_or_throw(sender.finish()).buffers[0].data(), memory);
}

}  // namespace
}  // namespace gradwire::rpc
