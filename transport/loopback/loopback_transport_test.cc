#include "gradwire/transport/loopback/loopback_transport.h"

#include <atomic>
#include <memory>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/transport/recording_listener.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TEST(LoopbackTransport, CloseInAListenerDropsLaterMessages) {
  std::unique_ptr<Transport> transport = make_loopback_transport();
  std::shared_ptr<Connection> client;
  std::atomic<bool> all_sent{false};
  std::atomic<int> count{0};
  // The handler of the first message waits until the others are queued; the handler of the second one closes.
  auto server = std::make_shared<RecordingListener>([&](Connection&, const Message&) {
    const int number = ++count;
    if (number == 1) eventually([&] { return all_sent.load(); });
    if (number == 2) client->close(absl::CancelledError("requested by the test"));
  });
  const auto address = transport->listen([&](const std::shared_ptr<Connection>&) { return server; });
  ASSERT_TRUE(address.ok()) << address.status();
  auto listener = std::make_shared<RecordingListener>();
  auto connected = transport->connect(*address, listener, absl::Seconds(30));
  ASSERT_TRUE(connected.ok()) << connected.status();
  client = *connected;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(client->send({"message", {}}).ok());
  all_sent = true;
  EXPECT_EQ(listener->wait_closed().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server->message_count(), 2u);
  transport->shutdown();
}

}  // namespace
}  // namespace gradwire::transport
