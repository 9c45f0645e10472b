#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gradwire/tests/device/operator_cases.h"

namespace gradwire {
namespace {

OperatorInputs inputs() {
  at::manual_seed(7);
  OperatorInputs in;
  in.a = at::randn({4, 6});
  in.b = at::randn({4, 6});
  in.m = at::randn({6, 5});
  in.image = at::randn({2, 3, 8, 8});
  in.index = at::tensor({2, 0, 3, 1}, at::kLong);
  in.columns = at::randint(0, 6, {4, 6}, at::kLong);
  in.mask = in.b > 0;
  in.definite = in.a.matmul(in.a.t()) + at::eye(4);
  return in;
}

OperatorInputs on(const c10::Device& device, const OperatorInputs& in) {
  return {in.a.to(device),     in.b.to(device),       in.m.to(device),    in.image.to(device),
          in.index.to(device), in.columns.to(device), in.mask.to(device), in.definite.to(device)};
}

// Equal in shape, strides, type and every bit.
void expect_same(const at::Tensor& got, const at::Tensor& expected, const std::string& name) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << name;
  ASSERT_EQ(got.scalar_type(), expected.scalar_type()) << name;
  const at::Tensor bytes = got.cpu().resolve_conj().contiguous();
  const at::Tensor wanted = expected.resolve_conj().contiguous();
  if (wanted.numel() == 0) return;
  EXPECT_EQ(std::memcmp(bytes.const_data_ptr(), wanted.const_data_ptr(), wanted.nbytes()), 0)
      << name << ": got\n"
      << bytes << "\nexpected\n"
      << wanted;
}

class Operators : public ::testing::TestWithParam<OperatorCase> {};

TEST_P(Operators, GiveTheCpusBitsWithoutWaiting) {
  const OperatorCase& tested = GetParam();
  {
    OperatorInputs here = inputs();
    OperatorInputs there = on(lag::device(1), here);
    const OperatorResults expected = tested.run(here);
    const int64_t waits = lag::counts().host_waits;
    const OperatorResults got = tested.run(there);
    const int64_t more = lag::counts().host_waits - waits;
    EXPECT_EQ(more > 0, tested.waits) << more << " waits, the last in " << lag::host_waits().back().call;
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); i++) expect_same(got[i], expected[i], tested.name);
    // The arguments are the same too, whether they were written or not.
    expect_same(there.a, here.a, "a");
    expect_same(there.b, here.b, "b");
    expect_same(there.m, here.m, "m");
  }
  lag::expect_nothing_left();
}

std::string name_of(const ::testing::TestParamInfo<OperatorCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Functional, Operators, ::testing::ValuesIn(functional_cases()), &name_of);
INSTANTIATE_TEST_SUITE_P(Mutating, Operators, ::testing::ValuesIn(mutating_cases()), &name_of);

}  // namespace
}  // namespace gradwire
