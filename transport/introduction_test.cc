// Tests that an accepted connection is closed if its peer does not introduce itself.

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/mutex.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr absl::Duration kTimeout = absl::Milliseconds(50);

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Transport>()> make;
};

class Introduction : public ::testing::TestWithParam<Kind> {
 protected:
  Introduction() {
    EXPECT_TRUE(known_.listener->introduced());
    stranger_.listener->set_introduced(false);
    auto address = server_->listen([this](const std::shared_ptr<Connection>&) {
      return accepts_stranger_ ? stranger_.listener : known_.listener;
    });
    EXPECT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }
  ~Introduction() override {
    client_->shutdown();
    server_->shutdown();
  }

  struct End {
    std::shared_ptr<RecordingListener> listener = std::make_shared<RecordingListener>();
    std::shared_ptr<RecordingListener> at_client = std::make_shared<RecordingListener>();
    std::shared_ptr<Connection> connection;
  };
  // Returns after the connection has been accepted.
  void connect(End& end, bool stranger) {
    accepts_stranger_ = stranger;
    auto connection = client_->connect(address_, end.at_client, absl::Seconds(30));
    ASSERT_TRUE(connection.ok()) << connection.status();
    end.connection = *connection;
    ASSERT_TRUE(end.connection->send({"first", {}}).ok());
    ASSERT_EQ(end.listener->wait_for_messages(1).size(), 1u);
  }

  End known_, stranger_;
  std::atomic<bool> accepts_stranger_{false};
  std::unique_ptr<Transport> server_ = GetParam().make();
  std::unique_ptr<Transport> client_ = GetParam().make();
  std::string address_;
};

TEST_P(Introduction, OnlyAStrangersConnectionEnds) {
  connect(known_, false);
  // This connection is accepted later, so its timeout expires later.
  connect(stranger_, true);
  const absl::Status reason = stranger_.listener->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kDeadlineExceeded) << reason;
  EXPECT_NE(std::string(reason.message()).find("did not complete the handshake within 50ms"),
            std::string::npos)
      << reason;
  EXPECT_EQ(stranger_.at_client->wait_closed().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(known_.connection->send({"second", {}}).ok());
  EXPECT_EQ(known_.listener->wait_for_messages(2).size(), 2u);
  EXPECT_EQ(known_.listener->closed_count(), 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Introduction,
                         ::testing::Values(Kind{"tcp",
                                                [] {
                                                  TcpOptions options;
                                                  options.introduction_timeout = kTimeout;
                                                  return make_tcp_transport(options);
                                                }},
                                           Kind{"shm",
                                                [] {
                                                  ShmOptions options;
                                                  options.introduction_timeout = kTimeout;
                                                  return make_shm_transport(options);
                                                }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gradwire::transport
