#include "gradwire/rpc/script.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/module.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/calls/op.h"
#include "gradwire/rpc/registry/fake_server_call.h"
#include "gradwire/rpc/registry/registry.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

template <class T, class... A>
absl::StatusOr<T> run_script(const std::string& name, A&&... arguments) {
  TestSender sender;
  throw_if_error(add_operator_arguments(sender.encoder(), sender.payload(), std::forward<A>(arguments)...));
  auto call =
      std::make_shared<FakeServerCall>(name, value_or_throw(receive(value_or_throw(sender.finish()))));
  serve_script(call);
  return call->template result<T>();
}

constexpr char kSource[] = R"(
def twice(x: Tensor, times: int = 2) -> Tensor:
  return x * times

def both(x: Tensor, scale: float) -> Tuple[Tensor, Dict[str, float]]:
  return x * scale, {"scale": scale}

def total(xs: List[Tensor]) -> Tensor:
  y = torch.zeros([1])
  for x in xs:
    y = y + x.sum()
  return y

def refuse(x: Tensor) -> Tensor:
  assert x.numel() == 0, "x must be empty"
  return x
)";

class ScriptTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { register_script("math", kSource); }
};

TEST_F(ScriptTest, InstalledByLinking) { EXPECT_EQ(script_handler(), &serve_script); }

TEST_F(ScriptTest, FunctionsRunWithDefaultsAndKeywords) {
  EXPECT_TRUE(at::equal(*run_script<at::Tensor>("math.twice", at::ones({3})), at::full({3}, 2.0f)));
  EXPECT_TRUE(
      at::equal(*run_script<at::Tensor>("math.twice", at::ones({3}), kw("times", 5)), at::full({3}, 5.0f)));
  const auto both =
      run_script<std::pair<at::Tensor, std::map<std::string, double>>>("math.both", at::ones({3}), 2);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->second.at("scale"), 2.0);
  EXPECT_EQ(run_script<at::Tensor>("math.total", std::vector<at::Tensor>{at::ones({3}), at::ones({4})})
                ->item<double>(),
            7);
  EXPECT_EQ(run_script<at::Tensor>("math.total", std::vector<at::Tensor>{})->item<double>(), 0);
}

TEST_F(ScriptTest, ErrorForAnUnknownNameListsTheRegisteredNames) {
  const auto function = run_script<at::Tensor>("math.thrice", at::ones({3}));
  EXPECT_EQ(function.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(function.status().message().find("twice"), std::string::npos) << function.status();
  const auto package = run_script<at::Tensor>("maths.twice", at::ones({3}));
  EXPECT_EQ(package.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(package.status().message().find("math"), std::string::npos);
  EXPECT_EQ(run_script<at::Tensor>("twice").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ScriptTest, WrongArgumentsNameTheSchema) {
  const auto result = run_script<at::Tensor>("math.twice", "text");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("Tensor x"), std::string::npos) << result.status();
}

TEST_F(ScriptTest, ExceptionsOfTheFunctionReachTheCaller) {
  const auto result = run_script<at::Tensor>("math.refuse", at::ones({3}));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnknown);
  EXPECT_NE(result.status().message().find("x must be empty"), std::string::npos) << result.status();
}

TEST_F(ScriptTest, ModulesKeepTheirState) {
  torch::jit::Module module("Scaler");
  module.register_parameter("weight", at::full({1}, 3.0f), false);
  module.define(
      "def forward(self, x: Tensor, plus: float = 0.0) -> Tensor:\n  return x * self.weight + plus\n");
  register_script_module("models.scaler", module);
  EXPECT_TRUE(
      at::equal(*run_script<at::Tensor>("models.scaler.forward", at::ones({2})), at::full({2}, 3.0f)));
  EXPECT_TRUE(at::equal(*run_script<at::Tensor>("models.scaler.forward", at::ones({2}), kw("plus", 1.0)),
                        at::full({2}, 4.0f)));
}

TEST_F(ScriptTest, RegistrationRefusesTakenNamesAndBrokenCode) {
  const auto code_of = [](auto register_it) {
    try {
      register_it();
    } catch (const Error& error) {
      return error.status().code();
    }
    return absl::StatusCode::kOk;
  };
  EXPECT_EQ(code_of([] { register_script("math", kSource); }), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code_of([] { register_script("broken", "def f(:"); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([] { register_script("a..b", kSource); }), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::rpc
