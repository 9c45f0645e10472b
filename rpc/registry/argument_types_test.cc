#include "gradwire/rpc/registry/argument_types.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/constructor.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using call_internal::convert_argument;

template <class P, class A>
inline constexpr bool kTakes = call_internal::ParameterTakes<1, P, A>::value;

TEST(ArgumentTypes, OnlyImplicitConversionsAreTaken) {
  static_assert(kTakes<int64_t, int> && kTakes<int64_t, const double&> && kTakes<bool, int>);
  static_assert(kTakes<std::string, const char(&)[4]> && kTakes<std::string, std::string&>);
  static_assert(kTakes<std::vector<double>, const std::vector<double>&>);
  static_assert(!kTakes<int64_t, const char(&)[4]> && !kTakes<int64_t, void*>);
  static_assert(!kTakes<std::vector<double>, int> && !kTakes<std::vector<double>, std::vector<float>>);
  static_assert(!kTakes<std::string, std::string_view> && !kTakes<std::string, int>);
  // An argument of the same type is passed by reference, without a copy.
  static_assert(kTakes<std::unique_ptr<int>, std::unique_ptr<int>&>);
}

TEST(ArgumentTypes, SameTypeIsPassedOnAndOthersAreConverted) {
  const std::vector<double> values = {1, 2};
  EXPECT_EQ((&convert_argument<1, std::vector<double>>(values)), &values);
  static_assert(std::is_same_v<decltype(convert_argument<1, std::string>(std::string())), std::string&&>);
  static_assert(std::is_same_v<decltype(convert_argument<1, std::string>("abc")), std::string>);
  EXPECT_EQ((convert_argument<1, std::string>("abc")), "abc");
  EXPECT_EQ((convert_argument<1, int64_t>(2.5)), 2);
}

int64_t twice(int64_t n) { return 2 * n; }
GRADWIRE_RPC(twice)
std::string join(const std::string& text, const std::vector<double>& values) {
  return text + std::to_string(values.size());
}
GRADWIRE_RPC(join)

class Sum {
 public:
  Sum(int64_t start, std::string name) : sum_(start), name_(std::move(name)) {}
  double add(double x) { return sum_ += x; }
  std::string name() const { return name_; }

 private:
  double sum_;
  std::string name_;
};
GRADWIRE_RPC_CONSTRUCTOR(Sum, int64_t, const std::string&)
GRADWIRE_RPC_CLASS(Sum, int64_t, std::string)
GRADWIRE_RPC_METHOD(Sum, add)
GRADWIRE_RPC_METHOD(Sum, name)

TEST(ArgumentTypes, CallsConvertAsDirectCallsDo) {
  testing::Group group(2);
  const double number = 2.9;
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", number), 4);
  EXPECT_EQ(group[0]->rpc_sync<&join>("worker1", "n", std::vector<double>{1, 2}), "n2");
  EXPECT_EQ(group[0]->rpc_async<&twice>("worker1", true).wait(), 2);
}

// Without the declaration 2.9 would be sent as a double, which the callee refuses as an int64.
TEST(ArgumentTypes, DeclaredConstructorConvertsAsADirectCallDoes) {
  testing::Group group(2);
  const RRef<Sum> sum = group[0]->remote<Sum>("worker1", 2.9, "sum");
  EXPECT_EQ(sum.rpc_sync<&Sum::add>(1), 3.0);
  EXPECT_EQ(sum.rpc_sync<&Sum::name>(), "sum");
}

}  // namespace
}  // namespace gradwire::rpc
