#include "gradwire/rpc/torch/operator_call.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <string>
#include <tuple>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/calls/op.h"
#include "gradwire/rpc/registry/fake_server_call.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/registry/type_ops.h"
#include "gradwire/rpc/torch/operator_allow_list.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

template <class... A>
std::shared_ptr<FakeServerCall> make_call(const std::string& name, A&&... arguments) {
  TestSender sender;
  throw_if_error(add_operator_arguments(sender.encoder(), sender.payload(), std::forward<A>(arguments)...));
  return std::make_shared<FakeServerCall>(name, value_or_throw(receive(value_or_throw(sender.finish()))));
}

template <class T, class... A>
absl::StatusOr<T> run(const std::string& name, A&&... arguments) {
  auto call = make_call(name, std::forward<A>(arguments)...);
  serve_operator(call);
  return call->template result<T>();
}

template <class... A>
at::Tensor tensor(const std::string& name, A&&... arguments) {
  auto result = run<at::Tensor>(name, std::forward<A>(arguments)...);
  EXPECT_TRUE(result.ok()) << name << ": " << result.status();
  return result.ok() ? *result : at::Tensor();
}

struct Opaque {
  int64_t member = 0;
};

TEST(OperatorCall, PointersAreNotAcceptedAsArguments) {
  static_assert(OperatorArgument<at::Tensor> && OperatorArgument<const at::Tensor&>);
  static_assert(OperatorArgument<bool> && OperatorArgument<int> && OperatorArgument<at::ScalarType>);
  static_assert(OperatorArgument<const char*> && OperatorArgument<const char(&)[4]>);
  static_assert(OperatorArgument<std::vector<bool>&> && OperatorArgument<std::optional<int>>);
  static_assert(!OperatorArgument<int*> && !OperatorArgument<const at::Tensor*>);
  static_assert(!OperatorArgument<int(&)[3]> && !OperatorArgument<void*>);
  static_assert(!OperatorArgument<int (*)(int)> && !OperatorArgument<int(int)>);
  static_assert(!OperatorArgument<int64_t Opaque::*> && !OperatorArgument<std::nullptr_t>);
  static_assert(!OperatorArgument<Opaque>);
}

TEST(OperatorCall, InstalledByLinking) { EXPECT_EQ(operator_handler(), &serve_operator); }

TEST(OperatorCall, OverloadIsChosenByTheArguments) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_TRUE(at::equal(tensor("aten::add", x, x), x + x));
  EXPECT_TRUE(at::equal(tensor("aten::add", x, 3), x + 3));
  EXPECT_TRUE(at::equal(tensor("aten::add", x, 3, kw("alpha", 2)), x + 6));
  EXPECT_TRUE(at::equal(tensor("aten::add.Tensor", x, x, kw("alpha", 0.5)), x * 1.5));
  EXPECT_TRUE(at::equal(tensor("aten::sum", x), x.sum()));
  EXPECT_TRUE(at::equal(tensor("aten::sum", x, std::vector<int64_t>{1}, true), x.sum(1, true)));
  EXPECT_TRUE(at::equal(tensor("aten::sum", x, 1), x.sum(1)));
  EXPECT_TRUE(at::equal(tensor("aten::view", x, std::vector<int64_t>{3, 2}), x.view({3, 2})));
  EXPECT_TRUE(at::equal(tensor("aten::cat", std::vector<at::Tensor>{x, x}, 1), at::cat({x, x}, 1)));
  EXPECT_TRUE(at::equal(tensor("aten::to", x, at::kDouble), x.to(at::kDouble)));
}

TEST(OperatorCall, OptionalsListsAndImplicitConversions) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_TRUE(at::equal(tensor("aten::clamp", x, std::nullopt, 3), x.clamp(std::nullopt, 3)));
  EXPECT_TRUE(at::equal(tensor("aten::index", x, std::vector<at::Tensor>{at::tensor({1, 0})}),
                        x.index_select(0, at::tensor({1, 0}))));
  EXPECT_TRUE(at::equal(
      tensor("aten::index", x, std::vector<std::optional<at::Tensor>>{std::nullopt, at::tensor({2})}),
      x.index_select(1, at::tensor({2}))));
  EXPECT_TRUE(at::equal(tensor("aten::dropout", x, 0, false), x));
  EXPECT_EQ(tensor("aten::zeros", std::vector<int64_t>{2, 2}, kw("dtype", at::kLong), kw("device", "cpu"))
                .scalar_type(),
            at::kLong);
  EXPECT_TRUE(at::equal(tensor("aten::max_pool2d", at::ones({1, 1, 4, 4}), 2), at::ones({1, 1, 2, 2})));
  EXPECT_TRUE(at::equal(tensor("aten::select", x, at::scalar_tensor(1, at::kLong), 2), x.select(1, 2)));
}

TEST(OperatorCall, SeveralResultsAreATuple) {
  const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  const auto result = run<std::tuple<at::Tensor, at::Tensor>>("aten::topk", x, 2);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(at::equal(std::get<0>(*result), std::get<0>(x.topk(2))));
  EXPECT_EQ(run<std::vector<at::Tensor>>("aten::split", x, 1)->size(), 2u);
  EXPECT_EQ(*run<double>("aten::item", at::scalar_tensor(2.5)), 2.5);
  EXPECT_TRUE(*run<bool>("aten::equal", x, x));
}

TEST(OperatorCall, SingleTensorIsStoredAsATensor) {
  auto call = make_call("aten::neg", at::ones({3}));
  serve_operator(call);
  ASSERT_TRUE(call->status().ok()) << call->status();
  EXPECT_EQ(call->value_type()->name(), value_type_name<at::Tensor>());
}

TEST(OperatorCall, TargetIsTheFirstArgument) {
  auto target = std::make_shared<at::Tensor>(at::ones({4}));
  auto call = make_call("aten::add_", 2);
  call->set_target(target, type_ops<at::Tensor>());
  serve_operator(call);
  ASSERT_TRUE(call->status().ok()) << call->status();
  EXPECT_TRUE(at::equal(*target, at::full({4}, 3.0f)));

  auto number = make_call("aten::mul", at::ones({2}));
  number->set_target(std::make_shared<std::vector<int>>(), type_ops<std::vector<int>>());
  serve_operator(number);
  EXPECT_EQ(number->status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OperatorCall, OperatorThatIsNotAllowedIsRefusedByName) {
  for (const char* name : {"aten::from_file", "aten::set_", "aten::resize_", "aten::as_strided",
                           "aten::record_stream", "aten::set_.source_Tensor", "prim::Print"}) {
    const auto result = run<at::Tensor>(name, at::ones({2}), 1);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kPermissionDenied) << name;
    EXPECT_NE(result.status().message().find(name), std::string::npos);
  }
}

TEST(OperatorCall, UnknownOperatorIsNotFound) {
  for (const char* name : {"aten::no_such_operator", "add", "", "aten::", "aten::add2.Tensor", "::", "."}) {
    const auto result = run<at::Tensor>(name, at::ones({2}), 1);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound) << name;
    EXPECT_NE(result.status().message().find(name), std::string::npos);
  }
}

TEST(OperatorCall, OutOverloadsAndUnknownOverloadsAreNotFound) {
  const at::Tensor x = at::ones({2});
  EXPECT_EQ(run<at::Tensor>("aten::add.out", x, x, kw("out", x)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(run<at::Tensor>("aten::add.nonsense", x, x).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(run<at::Tensor>("aten::add", x, x, kw("out", x)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(OperatorCall, WrongArgumentsListTheSchemas) {
  const auto result = run<at::Tensor>("aten::add", "text", 1);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("aten::add.Tensor("), std::string::npos) << result.status();
  for (const auto& refused :
       {run<at::Tensor>("aten::add"), run<at::Tensor>("aten::add", at::ones({2}), 1, 2, 3, 4, 5),
        run<at::Tensor>("aten::add", at::ones({2}), 1, kw("beta", 2)),
        run<at::Tensor>("aten::add", at::ones({2}), 1, kw("self", at::ones({2})))}) {
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
  }
}

TEST(OperatorCall, FailureOfTheOperatorKeepsItsMessage) {
  const auto result = run<at::Tensor>("aten::mm", at::ones({2, 3}), at::ones({2, 3}));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnknown);
  EXPECT_NE(result.status().message().find("cannot be multiplied"), std::string::npos) << result.status();
}

TEST(OperatorAllowList, EveryNameIsAnOperatorOfTheDispatcher) {
  for (absl::string_view name : allowed_operators()) {
    bool found = false;
    for (const auto& op :
         torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString("aten::" + std::string(name)))) {
      found |= op->isC10Op();
    }
    EXPECT_TRUE(found) << name;
  }
}

TEST(OperatorAllowList, OnlyNamesWithAnUnderscoreWriteToTheirArguments) {
  for (absl::string_view name : allowed_operators()) {
    for (const auto& op :
         torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString("aten::" + std::string(name)))) {
      if (!op->isC10Op()) continue;
      bool writes = false;
      bool out = false;
      for (const c10::Argument& argument : op->schema().arguments()) {
        writes |= argument.alias_info() != nullptr && argument.alias_info()->isWrite();
        out |= argument.is_out();
      }
      EXPECT_FALSE(writes && !out && name.back() != '_') << name;
    }
  }
}

}  // namespace
}  // namespace gradwire::rpc
