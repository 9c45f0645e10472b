#include "gradwire/collectives/nccl/nccl_types.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gradwire::collectives::nccl {
namespace {

const std::vector<at::ScalarType> kIntegers = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong};
const std::vector<at::ScalarType> kFloats = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};

std::string error(at::ScalarType dtype, ReduceOp op) {
  const auto found = plan(dtype, op);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << found.status();
  return std::string(found.status().message());
}

TEST(NcclPlan, NumbersKeepTheirTypeAndOperation) {
  EXPECT_EQ(plan(at::kFloat, ReduceOp::kSum)->type, Type::kFloat);
  EXPECT_EQ(plan(at::kBFloat16, ReduceOp::kMax)->type, Type::kBfloat16);
  EXPECT_EQ(plan(at::kBFloat16, ReduceOp::kMax)->op, Op::kMax);
  EXPECT_EQ(plan(at::kHalf, ReduceOp::kAvg)->op, Op::kAvg);
  EXPECT_EQ(plan(at::kByte, ReduceOp::kMin)->type, Type::kUint8);
  EXPECT_EQ(plan(at::kChar, ReduceOp::kMin)->type, Type::kInt8);
  EXPECT_EQ(plan(at::kLong, ReduceOp::kProduct)->op, Op::kProduct);
}

TEST(NcclPlan, BoolsStayBools) {
  EXPECT_EQ(plan(at::kBool, ReduceOp::kSum)->op, Op::kMax);
  EXPECT_EQ(plan(at::kBool, ReduceOp::kProduct)->op, Op::kMin);
  EXPECT_EQ(plan(at::kBool, ReduceOp::kSum)->type, Type::kUint8);
}

TEST(NcclPlan, ShortsAreWidened) {
  const auto found = plan(at::kShort, ReduceOp::kSum);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->widened);
  EXPECT_EQ(found->type, Type::kInt32);
  EXPECT_FALSE(plan(at::kInt, ReduceOp::kSum)->widened);
}

TEST(NcclPlan, ComplexNumbersAreTwoRealsAndCanOnlyBeAdded) {
  const auto found = plan(at::kComplexDouble, ReduceOp::kAvg);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->per_element, 2);
  EXPECT_EQ(found->type, Type::kDouble);
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_NE(error(at::kComplexFloat, op).find("for complex"), std::string::npos);
  }
}

TEST(NcclPlan, RanksCombineBitsThemselves) {
  for (const ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    for (const at::ScalarType dtype : kIntegers) EXPECT_TRUE(plan(dtype, op)->combined);
    for (const at::ScalarType dtype : kFloats) {
      EXPECT_NE(error(dtype, op).find("for integers"), std::string::npos);
    }
  }
  EXPECT_FALSE(plan(at::kInt, ReduceOp::kSum)->combined);
}

TEST(NcclPlan, BitsOfBoolsAreTheirMinimumAndMaximum) {
  EXPECT_EQ(plan(at::kBool, ReduceOp::kBand)->op, Op::kMin);
  EXPECT_EQ(plan(at::kBool, ReduceOp::kBor)->op, Op::kMax);
  EXPECT_FALSE(plan(at::kBool, ReduceOp::kBor)->combined);
  EXPECT_TRUE(plan(at::kBool, ReduceOp::kBxor)->combined);
}

TEST(NcclPlan, IntegersHaveNoAverage) {
  for (const at::ScalarType dtype : kIntegers) error(dtype, ReduceOp::kAvg);
  error(at::kBool, ReduceOp::kAvg);
  for (const at::ScalarType dtype : kFloats) EXPECT_TRUE(plan(dtype, ReduceOp::kAvg).ok());
}

TEST(NcclPlan, UnknownDtypesAreNamed) {
  EXPECT_NE(error(at::kComplexHalf, ReduceOp::kSum).find("ComplexHalf"), std::string::npos);
  EXPECT_NE(error(at::kUInt16, ReduceOp::kMax).find("UInt16"), std::string::npos);
}

}  // namespace
}  // namespace gradwire::collectives::nccl
