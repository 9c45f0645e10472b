// A process of another user on this host keeps as many connections to an HTTP server open as it can.

#include "gradwire/base/testing/other_user.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/transport/http/http_server.h"
#include "gradwire/transport/http/testing/http_client.h"

namespace gradwire::transport {
namespace {

TEST(HttpOtherUser, KeepsNobodyOut) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  OtherUser other([open = std::make_shared<std::vector<Descriptor>>()](const std::string& address) {
    for (int i = 0; i < 64; ++i) open->push_back(testing::connect_to(address));
    // The server handles connections in their order, so it has seen all of these when this one has ended.
    return std::to_string(testing::http_get(address, "/page").status);
  });
  HttpOptions options;
  options.address = "127.0.0.1:0";
  options.max_connections = 4;
  options.time_limit = absl::Hours(1);
  const auto server = *HttpServer::start(options, {{"/page", {.make = [] { return std::string("ok"); }}}});
  EXPECT_EQ(testing::http_get(server->address(), "/page").status, 200);
  (void)other.ask(server->address());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(testing::http_get(server->address(), "/page").status, 200);
}

}  // namespace
}  // namespace gradwire::transport
