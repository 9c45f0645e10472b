#include "gradwire/gateway/values/type.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

TEST(GatewayType, SignaturesAreTakenApart) {
  const absl::StatusOr<Signature> signature =
      parse_signature("Tensor(Tensor,float64,map[str,list[optional[int32]]],tuple[bool,uint64],RRef[ns::P])");
  ASSERT_TRUE(signature.ok()) << signature.status();
  EXPECT_EQ(signature->result.kind, TypeKind::kTensor);
  ASSERT_EQ(signature->parameters.size(), 5u);
  EXPECT_EQ(signature->parameters[1].bits, 64);
  const Type& map = signature->parameters[2];
  ASSERT_EQ(map.kind, TypeKind::kMap);
  EXPECT_EQ(map.arguments[0].kind, TypeKind::kText);
  EXPECT_EQ(map.arguments[1].arguments[0].arguments[0].bits, 32);
  ASSERT_EQ(signature->parameters[3].arguments.size(), 2u);
  EXPECT_FALSE(signature->parameters[3].arguments[1].is_signed);
  EXPECT_EQ(signature->parameters[4].inner, "ns::P");
}

TEST(GatewayType, NamesOfTheProgramMayHaveBrackets) {
  const absl::StatusOr<Signature> signature =
      parse_signature("ns::(anonymous)::Point(ns::Pair<int,std::vector<long>>,int64)");
  ASSERT_TRUE(signature.ok()) << signature.status();
  EXPECT_EQ(signature->result.kind, TypeKind::kOther);
  EXPECT_EQ(signature->result.name, "ns::(anonymous)::Point");
  ASSERT_EQ(signature->parameters.size(), 2u);
  EXPECT_EQ(signature->parameters[0].name, "ns::Pair<int,std::vector<long>>");
  EXPECT_TRUE(parse_signature("void()")->parameters.empty());
}

TEST(GatewayType, AnEnumerationIsItsInteger) {
  const absl::StatusOr<Type> type = parse_type("enum[uint8]");
  ASSERT_TRUE(type.ok());
  EXPECT_EQ(type->kind, TypeKind::kInteger);
  EXPECT_EQ(type->bits, 8);
  EXPECT_EQ(type->name, "enum[uint8]");
}

TEST(GatewayType, MalformedSignaturesAreRefused) {
  for (const char* text : {"", "Tensor", "()", "Tensor(", "Tensor(Tensor,)", "list[](int64)",
                           "map[str](int64)", "void(list[int64)", "enum[str]()", "void(a<b)"}) {
    EXPECT_EQ(parse_signature(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  std::string deep = "int64";
  for (int i = 0; i < 1000; ++i) deep = absl::StrCat("list[", deep, "]");
  EXPECT_EQ(parse_type(deep).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parse_type(std::string(100'000, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::gateway
