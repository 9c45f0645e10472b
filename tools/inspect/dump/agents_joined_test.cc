#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tools/inspect/dump/dump_command.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/dump/flight_join.h"

// The flight records of real agents, joined.
namespace gradwire::tools {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

Promise<int64_t>& gate() {
  static auto* promise = new Promise<int64_t>;
  return *promise;
}
Future<int64_t> wait_at_gate() { return gate().future(); }
GRADWIRE_RPC(wait_at_gate)
int64_t twice(int64_t value) { return 2 * value; }
GRADWIRE_RPC(twice)
int64_t ask(const std::string& worker) { return rpc::rpc_sync<&wait_at_gate>(worker); }
GRADWIRE_RPC(ask)

TEST(AgentsJoined, ChainOverThreeWorkersAndTheirClocks) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/joined-", ::getpid());
  rpc::RpcBackendOptions options;
  options.flight.directory = directory;
  rpc::testing::Group group(3, options);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", i), 2 * i);
  const Future<int64_t> call = group[0]->rpc_async<&ask>("worker1", "worker2");
  ASSERT_TRUE(eventually([&] {
    const rpc::OpenCalls open = group[2]->services().open_calls();
    return open.served.size() == 1 && open.served[0].state == rpc::CallState::kRunning;
  }));
  ASSERT_TRUE(dump_flight_records("the test asks for it").ok());
  gate().set_value(7);
  EXPECT_EQ(call.wait(), 7);

  const auto paths = find_flight_files(directory);
  ASSERT_TRUE(paths.ok());
  ASSERT_EQ(paths->size(), 3u);
  std::vector<FlightFile> files;
  for (const std::string& path : *paths) {
    files.push_back(*read_flight_file(path));
    EXPECT_EQ(files.back().bad_lines, 0u);
    EXPECT_FALSE(files.back().truncated);
  }
  const FlightJoin join = join_flight_files(files);
  ASSERT_EQ(join.chains.size(), 2u);
  const ChainLink& outer = join.chains[0];
  const ChainLink& inner = join.chains[1];
  ASSERT_TRUE(outer.made != nullptr && outer.served != nullptr);
  ASSERT_TRUE(inner.made != nullptr && inner.served != nullptr);
  EXPECT_EQ(inner.depth, 1);
  EXPECT_THAT(outer.made->name, EndsWith("::ask"));
  EXPECT_EQ(outer.made->state, "sent");
  EXPECT_EQ(outer.served->state, "in nested calls");
  EXPECT_THAT(inner.served->name, EndsWith("::wait_at_gate"));
  EXPECT_EQ(inner.served->state, "running");
  EXPECT_TRUE(join.never_seen.empty());
  EXPECT_TRUE(join.answers_lost.empty());
  // All are in one process, so the clocks agree within the error.
  ASSERT_FALSE(join.clocks.empty());
  for (const ClockOffset& clock : join.clocks)
    EXPECT_LE(std::abs(clock.ahead_ns), clock.error_ns + 1'000'000);

  std::string out;
  std::string errors;
  EXPECT_EQ(dump_command({directory}, out, errors), 0);
  EXPECT_EQ(errors, "");
  EXPECT_THAT(out, AllOf(HasSubstr("the test asks for it"), HasSubstr("\"worker0\" -> \"worker1\" "),
                         HasSubstr("\"worker1\" -> \"worker2\" ")));
}

}  // namespace
}  // namespace gradwire::tools
