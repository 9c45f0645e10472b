#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/gateway/server.h"
#include "gradwire/gateway/testing/client.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::gateway::testing {

// Workers in one process, a gateway in "worker0" once start() was called, and a client of it. The test fails
// if the gateway has objects or calls in the end.
class GatewayFixture : public ::testing::Test {
 protected:
  explicit GatewayFixture(int workers) : group_(workers) {}
  ~GatewayFixture() override {
    if (!server_) return;
    server_->shutdown();
    EXPECT_EQ(server_->objects(), 0u);
    EXPECT_TRUE(eventually([this] { return server_->calls() == 0; }));
  }
  Client& start(Options options = {}) {
    server_.emplace(group_[0], std::move(options));
    client_.emplace(server_->port());
    return *client_;
  }

  rpc::testing::Group group_;
  std::optional<Server> server_;
  std::optional<Client> client_;
};

}  // namespace gradwire::gateway::testing
