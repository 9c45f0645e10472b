// inspect finds a job whose workers have found one another by multicast.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/free_port.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/tests/inspect/run_inspect.h"

namespace gradwire::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(InspectMulticastJob, IsFoundByItsInitMethod) {
  const std::string method = absl::StrCat("tcp://239.255.77.5:", free_port());
  rpc::RpcBackendOptions options;
  options.init_method = method;
  options.security.insecure = true;
  auto other = std::async(std::launch::async, [&] { return rpc::Agent::start("ps", -1, 2, options); });
  const std::shared_ptr<rpc::Agent> trainer = rpc::Agent::start("trainer", -1, 2, options);
  const std::shared_ptr<rpc::Agent> ps = other.get();
  const InspectResult result = run_inspect(
      {absl::StrCat("--store=", method), "--insecure", "--once", "--json", "--interval=0.1", "--timeout=20"});
  EXPECT_EQ(result.code, 0) << result.out;
  const google::protobuf::Struct json = parse_json(result.out);
  ASSERT_TRUE(json.fields().contains("workers"));
  const auto& workers = json.fields().at("workers").list_value();
  EXPECT_EQ(workers.values_size(), 2);
  for (const auto& worker : workers.values()) {
    EXPECT_TRUE(worker.struct_value().fields().at("answered").bool_value()) << result.out;
  }
  trainer->shutdown(/*graceful=*/false);
  ps->shutdown(/*graceful=*/false);
}

TEST(InspectMulticastJob, ThatDoesNotRunIsAnErrorThatSaysWhatToDo) {
  const InspectResult result =
      run_inspect({absl::StrCat("--store=tcp://239.255.77.5:", free_port()), "--once", "--timeout=0.3"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("no process of the job has answered in the multicast group"),
                                HasSubstr("in the same network")));
}

}  // namespace
}  // namespace gradwire::tests
