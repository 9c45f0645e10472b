// Tests that the receiver of a large message is notified when it begins to arrive.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kSize = 8'000'017;

class TcpArriving : public ::testing::TestWithParam<int> {};

TEST_P(TcpArriving, LargeMessagesAreAnnouncedBeforeTheyAreComplete) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  options.stripes = GetParam();
  options.stripe_from_bytes = kMinStripedBytes;
  const auto server = make_tcp_transport(options);
  const auto client = make_tcp_transport(options);
  const auto at_server = std::make_shared<RecordingListener>();
  const auto at_client = std::make_shared<RecordingListener>();
  const auto address = server->listen([&](const std::shared_ptr<Connection>&) { return at_server; });
  ASSERT_TRUE(address.ok()) << address.status();
  const auto connection = client->connect(*address, at_client, absl::Seconds(60));
  ASSERT_TRUE(connection.ok()) << connection.status();
  // The first message requests the stripes, and later ones use them.
  constexpr std::size_t kMessages = 6;
  for (std::size_t i = 0; i < kMessages; ++i) {
    Message message;
    message.header = absl::StrCat("message ", i);
    message.buffers = {make_test_buffer(10, 1), make_test_buffer(kSize, 2)};
    ASSERT_TRUE((*connection)->send(std::move(message)).ok());
    ASSERT_EQ(at_server->wait_for_messages(i + 1).size(), i + 1);
  }
  const std::vector<RecordingListener::Announced> announced = at_server->announced();
  ASSERT_EQ(announced.size(), kMessages);
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(announced[i].header, absl::StrCat("message ", i));
    EXPECT_EQ(announced[i].bytes, announced[i].header.size() + 10 + kSize);
    EXPECT_GE(announced[i].arrived, announced[i].header.size());
    EXPECT_LT(announced[i].arrived, announced[i].bytes);
    EXPECT_EQ(announced[i].messages_before, i);
    EXPECT_GE(announced[i].counted, announced[i].arrived);
  }
  client->shutdown();
  server->shutdown();
}

INSTANTIATE_TEST_SUITE_P(Stripes, TcpArriving, ::testing::Values(0, 2));

}  // namespace
}  // namespace gradwire::transport
