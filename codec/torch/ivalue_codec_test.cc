#include "gradwire/codec/torch/ivalue_codec.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/codec_test_util.h"
#include "gradwire/codec/torch/ivalue_type.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/security/limits.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using c10::IValue;

IValue sent(const IValue& value) {
  auto result = round_trip<IValue>(value);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : IValue("lost");
}

TEST(IValueCodec, PlainValuesRoundTrip) {
  EXPECT_TRUE(sent(IValue()).isNone());
  EXPECT_TRUE(sent(IValue(true)).toBool());
  EXPECT_EQ(sent(IValue(int64_t{-5})).toInt(), -5);
  EXPECT_EQ(sent(IValue(2.5)).toDouble(), 2.5);
  EXPECT_EQ(sent(IValue(c10::complex<double>(1, -2))).toComplexDouble(), c10::complex<double>(1, -2));
  EXPECT_EQ(sent(IValue("text")).toStringRef(), "text");
  EXPECT_EQ(sent(IValue(at::Device("cpu"))).toDevice(), at::Device("cpu"));
  EXPECT_TRUE(at::equal(sent(IValue(at::ones({3}))).toTensor(), at::ones({3})));
  EXPECT_FALSE(sent(IValue(at::Tensor())).toTensor().defined());
}

TEST(IValueCodec, ListsKeepTheirTypesEvenWhenEmpty) {
  EXPECT_TRUE(sent(IValue(std::vector<int64_t>{1, 2})).isIntList());
  EXPECT_TRUE(sent(IValue(std::vector<double>{1, 2})).isDoubleList());
  EXPECT_TRUE(sent(IValue(c10::List<bool>({true, false}))).isBoolList());
  EXPECT_TRUE(sent(IValue(std::vector<at::Tensor>{at::ones({2})})).isTensorList());
  EXPECT_TRUE(sent(IValue(std::vector<std::string>{"a"})).toList().elementType()->kind() ==
              c10::TypeKind::StringType);
  EXPECT_TRUE(sent(IValue(std::vector<int64_t>{})).isIntList());
  EXPECT_TRUE(sent(IValue(c10::List<bool>())).isBoolList());
  EXPECT_TRUE(sent(IValue(std::vector<at::Tensor>{})).isTensorList());
  const IValue optional = sent(IValue(c10::List<std::optional<at::Tensor>>({at::ones({2}), std::nullopt})));
  EXPECT_TRUE(optional.isOptionalTensorList());
  c10::impl::GenericList mixed(c10::AnyType::get());
  mixed.push_back(IValue(1));
  mixed.push_back(IValue("two"));
  const IValue got = sent(IValue(mixed));
  EXPECT_EQ(got.toListRef()[1].toStringRef(), "two");
  EXPECT_EQ(got.toList().elementType()->kind(), c10::TypeKind::AnyType);
}

TEST(IValueCodec, TuplesAndDictionariesNest) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("w", at::full({2}, 4.0));
  const IValue tuple =
      c10::ivalue::Tuple::create({IValue(1), IValue(dict), IValue(std::vector<double>{0.5})});
  const IValue got = sent(tuple);
  ASSERT_TRUE(got.isTuple());
  const auto& elements = got.toTupleRef().elements();
  EXPECT_EQ(elements[0].toInt(), 1);
  const auto got_dict = elements[1].toGenericDict();
  EXPECT_EQ(got_dict.keyType()->kind(), c10::TypeKind::StringType);
  EXPECT_EQ(got_dict.valueType()->kind(), c10::TypeKind::TensorType);
  EXPECT_EQ(got_dict.at("w").toTensor().sum().item<double>(), 8.0);
  EXPECT_TRUE(*got.type() == *tuple.type());
}

TEST(IValueCodec, ReadableAsTheCppValueItHolds) {
  EXPECT_EQ((*round_trip<IValue, int64_t>(IValue(7))), 7);
  EXPECT_EQ((*round_trip<IValue, double>(IValue(7.5))), 7.5);
  EXPECT_EQ((*round_trip<IValue, std::string>(IValue("x"))), "x");
  EXPECT_TRUE((*round_trip<IValue, bool>(IValue(true))));
  EXPECT_EQ((round_trip<IValue, at::Tensor>(IValue(at::ones({3})))->numel()), 3);
  EXPECT_EQ((*round_trip<IValue, std::vector<int64_t>>(IValue(std::vector<int64_t>{1, 2}))),
            (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(
      (round_trip<IValue, std::vector<at::Tensor>>(IValue(std::vector<at::Tensor>{at::ones({3})}))->size()),
      1u);
  const IValue tuple = c10::ivalue::Tuple::create({IValue(at::ones({3})), IValue(2)});
  const auto pair = round_trip<IValue, std::tuple<at::Tensor, int64_t>>(tuple);
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(std::get<1>(*pair), 2);
  EXPECT_FALSE((*round_trip<IValue, std::optional<int64_t>>(IValue())).has_value());
  EXPECT_EQ((*round_trip<IValue, std::optional<int64_t>>(IValue(3))), 3);
  c10::Dict<std::string, int64_t> dict;
  dict.insert("a", 1);
  EXPECT_EQ((round_trip<IValue, std::map<std::string, int64_t>>(IValue(dict))->at("a")), 1);
}

TEST(IValueCodec, ReadsWhatCppContainersSend) {
  const auto list = round_trip<std::vector<std::string>, IValue>(std::vector<std::string>{"a", "b"});
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->toList().elementType()->kind(), c10::TypeKind::StringType);
  const auto dict =
      round_trip<std::map<std::string, double>, IValue>(std::map<std::string, double>{{"a", 2}});
  ASSERT_TRUE(dict.ok());
  EXPECT_EQ(dict->toGenericDict().at("a").toDouble(), 2);
}

TEST(IValueCodec, UnsupportedTypeIsNamedInTheError) {
  const IValue future(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get()));
  const auto status = round_trip<IValue>(future).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("Future"), std::string::npos) << status;
}

TEST(IValueCodec, NestingIsBoundedOnBothSides) {
  IValue value(1);
  for (int i = 0; i < kMaxValueDepth; ++i) value = c10::ivalue::Tuple::create({value});
  EXPECT_TRUE(round_trip<IValue>(value).ok());
  value = c10::ivalue::Tuple::create({value});
  EXPECT_EQ(round_trip<IValue>(value).status().code(), absl::StatusCode::kInvalidArgument);

  proto::Value wire;
  wire.set_integer(1);
  for (int i = 0; i <= kMaxValueDepth; ++i) {
    proto::Value outer;
    *outer.mutable_list()->add_values() = wire;
    wire = outer;
  }
  const proto::Payload payload;
  Decoder decoder(payload, nullptr, {});
  EXPECT_EQ(Codec<IValue>::decode(wire, decoder).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(IValueCodec, HostileContainersRefused) {
  const proto::Payload payload;
  Decoder decoder(payload, nullptr, {});
  proto::Value ints;
  ints.mutable_list()->set_element_type("int");
  ints.mutable_list()->add_values()->set_text("not an int");
  EXPECT_FALSE(Codec<IValue>::decode(ints, decoder).ok());
  proto::Value map;
  map.mutable_map()->add_keys()->set_integer(1);
  EXPECT_FALSE(Codec<IValue>::decode(map, decoder).ok());
  map.mutable_map()->mutable_keys(0)->mutable_list();
  map.mutable_map()->add_values()->set_integer(1);
  EXPECT_FALSE(Codec<IValue>::decode(map, decoder).ok());
}

TEST(IValueType, TextRoundTrips) {
  for (const char* text :
       {"Tensor", "List[Optional[Tensor]]", "Dict[str,List[int]]", "Tuple[int,Tuple[],Any]"}) {
    const auto type = type_from_text(text);
    ASSERT_TRUE(type.ok()) << type.status();
    EXPECT_EQ(*type_to_text(**type), text);
  }
}

TEST(IValueType, NonsenseRefused) {
  for (const char* text : {"", "List", "List[", "List[]", "List[int,int]", "int]", "Dict[Tensor,int]",
                           "Tensor[int]", "[", "List[int", "Tuple[int", "Tuple[,]", "__torch__.Evil"}) {
    EXPECT_FALSE(type_from_text(text).ok()) << text;
  }
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "List[";
  EXPECT_FALSE(type_from_text(deep).ok());
}

}  // namespace
}  // namespace gradwire::rpc
