// Tests how connections are established and closed.

#include <thread>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/conformance.h"
#include "gradwire/transport/process_counts.h"

namespace gradwire::transport {
namespace {

Message text_message(std::string header) {
  Message message;
  message.header = std::move(header);
  return message;
}

TEST_P(TransportConformance, CloseWithFlushDeliversQueuedMessages) {
  constexpr int kMessages = 40;
  Pair pair = connect();
  pair.server_listener->hold_back();
  for (int i = 0; i < kMessages; ++i) {
    Message message = text_message(absl::StrCat(i));
    message.buffers = {make_test_buffer(500'000, i)};
    ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  }
  pair.client->close(absl::CancelledError("done"), absl::Seconds(60));
  EXPECT_EQ(pair.client->send(text_message("late")).status().code(), absl::StatusCode::kUnavailable);
  pair.server_listener->resume();
  EXPECT_EQ(pair.client_listener->wait_closed(), absl::CancelledError("done"));
  EXPECT_EQ(pair.server_listener->wait_closed().code(), absl::StatusCode::kUnavailable);
  auto received = pair.server_listener->wait_for_messages(kMessages);
  ASSERT_EQ(received.size(), kMessages);
  for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(is_test_buffer(received[i].buffers[0], 500'000, i));
}

TEST_P(TransportConformance, CloseWithALongFlushOfAnIdleConnectionEndsIt) {
  Pair pair = connect();
  pair.client->close(absl::CancelledError("requested by the test"), absl::Hours(1));
  EXPECT_EQ(pair.client_listener->wait_closed().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(pair.server_listener->wait_closed().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, CloseWithFlushGivesUpWhenTheTimeIsOver) {
  Pair pair = connect();
  pair.server_listener->hold_back();
  for (int i = 0; i < 40; ++i) {
    Message message;
    message.buffers = {make_test_buffer(1'000'000, i)};
    ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  }
  // If both ends share a thread, one end cannot close while the listener of the other end blocks that thread.
  bool shared_thread = GetParam().within_one_object;
  pair.client->close(absl::CancelledError("done"), absl::Milliseconds(20));
  if (shared_thread) pair.server_listener->resume();
  EXPECT_EQ(pair.client_listener->wait_closed(), absl::CancelledError("done"));
  pair.server_listener->resume();
  EXPECT_EQ(pair.server_listener->wait_closed().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, CloseReportsItsReasonLocallyAndUnavailableToThePeer) {
  Pair pair = connect();
  pair.client->close(absl::AbortedError("because"));
  EXPECT_EQ(pair.client_listener->wait_closed(), absl::AbortedError("because"));
  absl::Status peer_reason = pair.server_listener->wait_closed();
  EXPECT_EQ(peer_reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(peer_reason.message().find(pair.server->peer_address()), std::string::npos) << peer_reason;
}

TEST_P(TransportConformance, TheFirstReasonWins) {
  Pair pair = connect();
  pair.client->close(absl::AbortedError("first"));
  pair.client->close(absl::InternalError("second"));
  EXPECT_EQ(pair.client_listener->wait_closed(), absl::AbortedError("first"));
  pair.client->close(absl::InternalError("third"));
  shut_down_all();
  EXPECT_EQ(pair.client_listener->closed_count(), 1);
}

TEST_P(TransportConformance, SendAfterTheEndIsUnavailable) {
  Pair pair = connect();
  pair.client->close(absl::AbortedError("the reason"));
  auto sent = pair.client->send(text_message("late"));
  EXPECT_EQ(sent.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(sent.status().message().find("the reason"), std::string::npos) << sent.status();
  EXPECT_EQ(pair.server_listener->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.server->send(text_message("late")).status().code(), absl::StatusCode::kUnavailable);
  pair.server->capture(1);
}

TEST_P(TransportConformance, APeerThatShutsDownIsUnavailable) {
  Pair pair = connect();
  server().shutdown();
  // A transport that owns both ends closes both.
  EXPECT_EQ(pair.client_listener->wait_closed().code(),
            GetParam().within_one_object ? absl::StatusCode::kCancelled : absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.server_listener->wait_closed().code(), absl::StatusCode::kCancelled);
  client().shutdown();
  EXPECT_EQ(pair.client_listener->closed_count(), 1);
  EXPECT_EQ(pair.client_listener->misplaced_calls(), 0);
}

TEST_P(TransportConformance, MessagesSentBeforeThePeerClosedStillArrive) {
  Pair pair = connect();
  pair.client_listener->hold_back();
  for (int i = 0; i < 20; ++i) {
    Message message;
    message.buffers = {make_test_buffer(200'000, i)};
    ASSERT_TRUE(pair.server->send(std::move(message)).ok());
  }
  pair.server->close(absl::OkStatus(), absl::Seconds(60));
  pair.client_listener->resume();
  EXPECT_EQ(pair.client_listener->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.client_listener->message_count(), 20);
}

TEST_P(TransportConformance, ConnectingToNobodyIsUnavailable) {
  std::string nobody;
  {
    auto other = GetParam().make();
    auto listening = other->listen([](const std::shared_ptr<Connection>&) { return nullptr; });
    ASSERT_TRUE(listening.ok());
    nobody = *listening;
  }
  auto listener = std::make_shared<RecordingListener>();
  auto connection = client().connect(nobody, listener, absl::Seconds(20));
  ASSERT_TRUE(connection.ok()) << connection.status();
  absl::Status reason = listener->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  // An address may end in "@" and the network to which it belongs.
  EXPECT_NE(reason.message().find(nobody.substr(0, nobody.find('@'))), std::string::npos) << reason;
  EXPECT_EQ((*connection)->send(text_message("late")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, ConnectingToAMalformedAddressIsInvalid) {
  auto listener = std::make_shared<RecordingListener>();
  for (const std::string& wrong : {std::string(), GetParam().malformed_address}) {
    auto connection = client().connect(wrong, listener, absl::Seconds(1));
    EXPECT_EQ(connection.status().code(), absl::StatusCode::kInvalidArgument) << connection.status();
  }
  EXPECT_EQ(listener->closed_count(), 0);
}

TEST_P(TransportConformance, AConnectionThatIsRefusedIsUnavailable) {
  auto refusing = GetParam().make();
  auto listening = refusing->listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  ASSERT_TRUE(listening.ok());
  Transport& connecting = GetParam().within_one_object ? *refusing : client();
  auto listener = std::make_shared<RecordingListener>();
  auto connection = connecting.connect(*listening, listener, absl::Seconds(20));
  ASSERT_TRUE(connection.ok());
  EXPECT_EQ(listener->wait_closed().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, ASecondListenFails) {
  auto second = server().listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
}

TEST_P(TransportConformance, NothingIsCalledFromInsideACall) {
  Pair pair = connect();
  ASSERT_TRUE(pair.client->send(text_message("x")).ok());
  ASSERT_EQ(pair.server_listener->wait_for_messages(1).size(), 1);
  EXPECT_NE(pair.server_listener->last_thread(), std::this_thread::get_id());
  pair.client->close(absl::OkStatus());
  EXPECT_TRUE(pair.client_listener->wait_closed().ok());
  EXPECT_EQ(pair.server_listener->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(pair.client_listener->last_thread(), std::this_thread::get_id());
  EXPECT_NE(pair.server_listener->last_thread(), std::this_thread::get_id());
}

TEST_P(TransportConformance, NothingIsDeliveredAfterCloseInsideAListener) {
  Pair pair = connect([](Connection& connection, const Message&) {
    connection.close(absl::CancelledError("requested by the test"));
  });
  for (int i = 0; i < 50; ++i) {
    if (!pair.client->send(text_message("x")).ok()) break;
  }
  EXPECT_EQ(pair.server_listener->wait_closed(), absl::CancelledError("requested by the test"));
  EXPECT_EQ(pair.server_listener->message_count(), 1);
  EXPECT_EQ(pair.client_listener->wait_closed().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, ListenersAreReleasedAfterOnClosed) {
  Pair pair = connect();
  std::weak_ptr<RecordingListener> listener = pair.client_listener;
  pair.client->close(absl::OkStatus());
  EXPECT_TRUE(pair.client_listener->wait_closed().ok());
  pair.client_listener.reset();
  shut_down_all();
  EXPECT_TRUE(listener.expired());
}

TEST_P(TransportConformance, ShutdownCompletesAFlush) {
  Pair pair = connect();
  for (int i = 0; i < 20; ++i) {
    Message message;
    message.buffers = {make_test_buffer(300'000, i)};
    ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  }
  pair.client->close(absl::OkStatus(), absl::Seconds(60));
  client().shutdown();
  EXPECT_EQ(pair.client_listener->closed_count(), 1);
  EXPECT_EQ(pair.server_listener->wait_for_messages(20).size(), 20);
}

TEST_P(TransportConformance, ShutdownEndsTrafficInFlight) {
  constexpr int kConnections = 6;
  std::vector<Pair> pairs;
  for (int i = 0; i < kConnections; ++i) pairs.push_back(connect());
  std::vector<std::thread> senders;
  for (Pair& pair : pairs) {
    for (Connection* connection : {pair.client.get(), pair.server.get()}) {
      senders.emplace_back([connection] {
        for (int i = 0;; ++i) {
          Message message;
          message.header = "traffic";
          message.buffers = {make_test_buffer(i % 10 == 0 ? 300'000 : 100, 1, Buffer::Sharing::kBorrowed)};
          auto ticket = connection->send(std::move(message));
          if (!ticket.ok()) {
            EXPECT_EQ(ticket.status().code(), absl::StatusCode::kUnavailable);
            return;
          }
          connection->capture(*ticket);
        }
      });
    }
  }
  for (Pair& pair : pairs) EXPECT_GE(pair.server_listener->wait_for_messages(3).size(), 3);
  client().shutdown();
  server().shutdown();
  for (std::thread& sender : senders) sender.join();
  for (Pair& pair : pairs) {
    EXPECT_EQ(pair.client_listener->closed_count(), 1);
    EXPECT_EQ(pair.server_listener->closed_count(), 1);
    EXPECT_EQ(pair.client_listener->misplaced_calls(), 0);
  }
}

TEST_P(TransportConformance, AfterShutdownNothingBegins) {
  Pair pair = connect();
  client().shutdown();
  client().shutdown();
  auto listener = std::make_shared<RecordingListener>();
  EXPECT_EQ(client().connect(address(), listener, absl::Seconds(1)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.client->send(text_message("late")).status().code(), absl::StatusCode::kUnavailable);
  server().shutdown();
  auto second = server().listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  EXPECT_FALSE(second.ok());
}

TEST_P(TransportConformance, ConnectionsMayOutliveTheirTransport) {
  Pair pair = connect();
  shut_down_all();
  EXPECT_EQ(pair.client->send(text_message("late")).status().code(), absl::StatusCode::kUnavailable);
  pair.client->capture(1);
  pair.client->close(absl::OkStatus());
  EXPECT_FALSE(pair.client->peer_address().empty());
}

TEST_P(TransportConformance, ShutdownReleasesAllDescriptorsAndThreads) {
  shut_down_all();
  const ProcessCounts before;
  for (int round = 0; round < 3; ++round) {
    SetUp();
    std::vector<Pair> pairs;
    for (int i = 0; i < 10; ++i) pairs.push_back(connect());
    for (Pair& pair : pairs) ASSERT_TRUE(pair.client->send(text_message("x")).ok());
    for (Pair& pair : pairs) ASSERT_EQ(pair.server_listener->wait_for_messages(1).size(), 1);
    pairs[0].client->close(absl::OkStatus(), absl::Seconds(1));
    pairs[1].server->close(absl::OkStatus());
    shut_down_all();
  }
  EXPECT_EQ(before.left(), "");
}

}  // namespace
}  // namespace gradwire::transport
