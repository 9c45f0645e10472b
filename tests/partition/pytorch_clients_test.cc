// A store that serves clients of PyTorch's TCPStore only from its own host, and such clients on two hosts.

#include <sched.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/testing/other_user.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/tcp_store_server.h"
#include "gradwire/store/testing/pytorch_ping.h"
#include "gradwire/tests/partition/hosts.h"
#include "gtest/gtest.h"

namespace chaos {
namespace {

using gradwire::OtherUser;
using gradwire::store::TcpStoreServer;

// "HOST PORT": connects as PyTorch's TCPStore does, and asks for an answer. "enter": moves the process to a
// network namespace of its own.
std::string client(const std::string& command) {
  if (command == "enter") return ::unshare(CLONE_NEWNET) == 0 ? "ok" : "not permitted";
  const std::pair<std::string, std::string> target = absl::StrSplit(command, ' ');
  return gradwire::store::ping_as_pytorch(target.first, std::stoi(target.second));
}

TEST(PyTorchClients, OfAnotherHostAreRefused) {
  // The client has the same user, root, and its process is made before this one enters its namespace.
  OtherUser other(&client, /*user=*/0);
  GRADWIRE_NEEDS("network_namespaces", Hosts::enter());
  ASSERT_EQ(other.ask("enter"), "ok");
  ASSERT_TRUE(Hosts::join(1, other.pid()).ok());
  auto server = gradwire::value_or_throw(TcpStoreServer::start(
      {.host = "", .allow_unauthenticated_pytorch = false, .security = {.insecure = true}}));
  const std::string at_address = absl::StrCat(Hosts::own_address(), " ", server->port());
  testing::internal::CaptureStderr();
  EXPECT_EQ(other.ask(at_address), "refused");
  EXPECT_EQ(other.ask(at_address), "refused");
  const std::vector<std::string> lines = gradwire::captured_lines("the store refused a connection");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(absl::StrContains(lines[0], "does not come over the loopback interface")) << lines[0];
  // A client on the host of the server, by each of its addresses.
  EXPECT_EQ(client(at_address), "served");
  EXPECT_EQ(client(absl::StrCat("127.0.0.1 ", server->port())), "served");
  server = gradwire::value_or_throw(TcpStoreServer::start({.host = "", .security = {.insecure = true}}));
  EXPECT_EQ(other.ask(absl::StrCat(Hosts::own_address(), " ", server->port())), "served");
}

}  // namespace
}  // namespace chaos
