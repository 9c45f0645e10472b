// Tests how messages and buffers are delivered.

#include <cstring>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/transport/conformance.h"

namespace gradwire::transport {
namespace {

Message message_with(std::string header) {
  Message message;
  message.header = std::move(header);
  return message;
}

bool is_aligned(const Buffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0; }

TEST_P(TransportConformance, DeliversHeaderAndBuffersAsTheyAre) {
  Pair pair = connect();
  Message message;
  message.header = std::string("header\0with a zero", 18);
  message.buffers = {make_test_buffer(100, 1), make_test_buffer(70'000, 2), make_test_buffer(1, 3)};
  ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  auto received = pair.server_listener->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  EXPECT_EQ(received[0].header, std::string("header\0with a zero", 18));
  ASSERT_EQ(received[0].buffers.size(), 3);
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], 100, 1));
  EXPECT_TRUE(is_test_buffer(received[0].buffers[1], 70'000, 2));
  EXPECT_TRUE(is_test_buffer(received[0].buffers[2], 1, 3));
}

TEST_P(TransportConformance, MessagesSentBeforeTheConnectionIsEstablishedArriveInOrder) {
  auto listener = std::make_shared<RecordingListener>();
  auto connection = client().connect(address(), listener, absl::Seconds(30));
  ASSERT_TRUE(connection.ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE((*connection)->send(message_with(absl::StrCat(i))).ok());
  auto received_by = accepted_listener(0);
  ASSERT_NE(received_by, nullptr);
  auto received = received_by->wait_for_messages(100);
  ASSERT_EQ(received.size(), 100);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(received[i].header, absl::StrCat(i));
}

TEST_P(TransportConformance, ManyMessagesKeepTheirOrder) {
  constexpr int kMessages = 5'000;
  Pair pair = connect();
  for (int i = 0; i < kMessages; ++i) {
    Message message = message_with(absl::StrCat(i));
    if (i % 7 == 0) message.buffers.push_back(make_test_buffer(i, i));
    ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  }
  auto received = pair.server_listener->wait_for_messages(kMessages);
  ASSERT_EQ(received.size(), kMessages);
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(received[i].header, absl::StrCat(i));
    ASSERT_EQ(received[i].buffers.size(), i % 7 == 0 ? 1 : 0);
    for (const Buffer& buffer : received[i].buffers) ASSERT_TRUE(is_test_buffer(buffer, i, i));
  }
}

TEST_P(TransportConformance, EachOfManyThreadsKeepsItsOrder) {
  constexpr int kThreads = 8;
  constexpr int kMessages = 300;
  Pair pair = connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&pair, t] {
      for (int i = 0; i < kMessages; ++i) {
        Message message = message_with(absl::StrCat(t, " ", i));
        message.buffers = {make_test_buffer(i * 10, t), make_test_buffer(i % 100 == 0 ? 100'000 : 3, i)};
        EXPECT_TRUE(pair.client->send(std::move(message)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto received = pair.server_listener->wait_for_messages(kThreads * kMessages);
  ASSERT_EQ(received.size(), kThreads * kMessages);
  std::vector<int> next(kThreads, 0);
  for (const Message& message : received) {
    std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(message.header, ' ');
    int t = -1, i = -1;
    ASSERT_TRUE(absl::SimpleAtoi(parts.first, &t) && absl::SimpleAtoi(parts.second, &i));
    ASSERT_EQ(i, next[t]++);
    ASSERT_TRUE(is_test_buffer(message.buffers[0], i * 10, t));
    ASSERT_TRUE(is_test_buffer(message.buffers[1], i % 100 == 0 ? 100'000 : 3, i));
  }
}

TEST_P(TransportConformance, LargeBuffersArriveWhole) {
  constexpr std::size_t kSize = std::size_t{64} << 20;
  Pair pair = connect();
  Message message = message_with("large");
  message.buffers = {make_test_buffer(kSize, 5), make_test_buffer(kSize / 64 + 1, 6)};
  ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  ASSERT_TRUE(pair.client->send(message_with("after")).ok());
  auto received = pair.server_listener->wait_for_messages(2);
  ASSERT_EQ(received.size(), 2);
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], kSize, 5));
  EXPECT_TRUE(is_test_buffer(received[0].buffers[1], kSize / 64 + 1, 6));
  EXPECT_EQ(received[1].header, "after");
}

TEST_P(TransportConformance, LargeHeadersArriveWhole) {
  Pair pair = connect();
  std::string header(5'000'000, 'x');
  for (std::size_t i = 0; i < header.size(); i += 4'096) header[i] = static_cast<char>(i >> 12);
  ASSERT_TRUE(pair.client->send(message_with(header)).ok());
  auto received = pair.server_listener->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  EXPECT_TRUE(received[0].header == header);
}

TEST_P(TransportConformance, MessageAboveTheListenersLimitClosesTheConnection) {
  if (!GetParam().asks_listener) {
    // This transport ignores the limit of the listener and delivers all messages.
    Pair pair = connect();
    pair.server_listener->set_max_message_bytes(1'000);
    ASSERT_TRUE(pair.client->send({std::string(90'000, 'a'), {}}).ok());
    EXPECT_EQ(pair.server_listener->wait_for_messages(1).size(), 1u);
    return;
  }
  for (const bool in_buffer : {false, true}) {
    // The listener raises its limit after its first message.
    std::shared_ptr<RecordingListener> listener;
    Pair pair = connect([&](Connection&, const Message&) { listener->set_max_message_bytes(100'000); });
    listener = pair.server_listener;
    listener->set_max_message_bytes(1'000);
    ASSERT_TRUE(pair.client->send({std::string(900, 'a'), {}}).ok());
    ASSERT_EQ(listener->wait_for_messages(1).size(), 1u);
    ASSERT_TRUE(pair.client->send({std::string(90'000, 'b'), {}}).ok());
    ASSERT_EQ(listener->wait_for_messages(2).size(), 2u);
    Message large{std::string(in_buffer ? 10 : 110'000, 'c'), {}};
    if (in_buffer) large.buffers.push_back(make_test_buffer(110'000, 1));
    (void)pair.client->send(std::move(large));
    EXPECT_EQ(listener->wait_closed().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(listener->message_count(), 2u);
    (void)pair.client_listener->wait_closed();
  }
}

TEST_P(TransportConformance, ManyBuffersArriveInOrder) {
  constexpr int kBuffers = 3'000;
  Pair pair = connect();
  Message message;
  for (int i = 0; i < kBuffers; ++i) message.buffers.push_back(make_test_buffer(i % 5 == 0 ? 0 : i, i));
  ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  auto received = pair.server_listener->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  ASSERT_EQ(received[0].buffers.size(), kBuffers);
  for (int i = 0; i < kBuffers; ++i) {
    ASSERT_TRUE(is_test_buffer(received[0].buffers[i], i % 5 == 0 ? 0 : i, i)) << i;
    ASSERT_TRUE(is_aligned(received[0].buffers[i])) << i;
  }
}

TEST_P(TransportConformance, EmptyHeadersAndEmptyBuffersArrive) {
  Pair pair = connect();
  ASSERT_TRUE(pair.client->send(Message()).ok());
  Message message;
  message.buffers = {Buffer(), make_test_buffer(0, 1, Buffer::Sharing::kBorrowed), make_test_buffer(2, 1),
                     Buffer()};
  ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  ASSERT_TRUE(pair.client->send(message_with("end")).ok());
  auto received = pair.server_listener->wait_for_messages(3);
  ASSERT_EQ(received.size(), 3);
  EXPECT_TRUE(received[0].header.empty() && received[0].buffers.empty());
  ASSERT_EQ(received[1].buffers.size(), 4);
  EXPECT_EQ(received[1].buffers[0].size(), 0);
  EXPECT_TRUE(is_test_buffer(received[1].buffers[2], 2, 1));
  EXPECT_EQ(received[1].buffers[3].size(), 0);
  EXPECT_EQ(received[2].header, "end");
}

TEST_P(TransportConformance, BothDirectionsCarryLargeMessagesAtOnce) {
  constexpr int kMessages = 8;
  constexpr std::size_t kSize = std::size_t{4} << 20;
  Pair pair = connect();
  auto send_all = [](Connection& connection, unsigned seed) {
    for (int i = 0; i < kMessages; ++i) {
      Message message = message_with("both");
      message.buffers = {make_test_buffer(kSize + i, seed + i)};
      EXPECT_TRUE(connection.send(std::move(message)).ok());
    }
  };
  std::thread one([&] { send_all(*pair.client, 10); });
  std::thread other([&] { send_all(*pair.server, 20); });
  one.join();
  other.join();
  auto at_server = pair.server_listener->wait_for_messages(kMessages);
  auto at_client = pair.client_listener->wait_for_messages(kMessages);
  ASSERT_EQ(at_server.size(), kMessages);
  ASSERT_EQ(at_client.size(), kMessages);
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(is_test_buffer(at_server[i].buffers[0], kSize + i, 10 + i));
    EXPECT_TRUE(is_test_buffer(at_client[i].buffers[0], kSize + i, 20 + i));
  }
}

TEST_P(TransportConformance, ReceivedBuffersAreAlignedToSixtyFourBytes) {
  Pair pair = connect();
  std::vector<std::size_t> sizes = {1, 3, 63, 64, 65, 4'095, 4'097, 65'535, 262'145, 1'048'577, 5'000'001};
  Message message;
  for (std::size_t size : sizes) message.buffers.push_back(make_test_buffer(size, 1));
  ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  auto received = pair.server_listener->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(is_aligned(received[0].buffers[i])) << sizes[i];
    EXPECT_TRUE(is_test_buffer(received[0].buffers[i], sizes[i], 1)) << sizes[i];
  }
}

TEST_P(TransportConformance, ReceivedBuffersBelongToTheReceiverAlone) {
  Pair pair = connect();
  Buffer sent = make_test_buffer(10'000, 4);
  Message message;
  message.buffers = {sent, sent};
  ASSERT_TRUE(pair.client->send(message).ok());
  ASSERT_TRUE(pair.client->send(message).ok());
  auto received = pair.server_listener->wait_for_messages(2);
  ASSERT_EQ(received.size(), 2);
  std::memset(received[0].buffers[0].data(), 0, 10'000);
  EXPECT_TRUE(is_test_buffer(sent, 10'000, 4));
  EXPECT_TRUE(is_test_buffer(received[0].buffers[1], 10'000, 4));
  EXPECT_TRUE(is_test_buffer(received[1].buffers[0], 10'000, 4));
}

TEST_P(TransportConformance, ReceivedBuffersOutliveEverything) {
  std::vector<Message> received;
  {
    Pair pair = connect();
    Message message;
    message.buffers = {make_test_buffer(1'000, 1), make_test_buffer(3'000'000, 2)};
    ASSERT_TRUE(pair.client->send(std::move(message)).ok());
    received = pair.server_listener->wait_for_messages(1);
  }
  shut_down_all();
  ASSERT_EQ(received.size(), 1);
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], 1'000, 1));
  EXPECT_TRUE(is_test_buffer(received[0].buffers[1], 3'000'000, 2));
  std::memset(received[0].buffers[1].data(), 1, 3'000'000);
}

TEST_P(TransportConformance, ReleasesTheSendersBuffersAfterTheyWereSent) {
  Pair pair = connect();
  std::weak_ptr<void> owner;
  {
    Message message;
    message.buffers = {make_test_buffer(2'000'000, 1)};
    owner = message.buffers[0].owner();
    ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  }
  ASSERT_EQ(pair.server_listener->wait_for_messages(1).size(), 1);
  // After the shutdown no part of the transport can hold the buffers for a moment longer.
  shut_down_all();
  EXPECT_TRUE(owner.expired());
}

TEST_P(TransportConformance, CaptureKeepsTheBytesOfThatMoment) {
  constexpr int kMessages = 24;
  constexpr std::size_t kSize = std::size_t{1} << 20;
  Pair pair = connect();
  // The receiver does not read, so most of the messages are still queued when they are captured.
  pair.server_listener->hold_back();
  ASSERT_TRUE(pair.client->send(message_with("first")).ok());
  std::vector<Buffer> mine;
  std::vector<uint64_t> tickets;
  for (int i = 0; i < kMessages; ++i) {
    Message message = message_with("borrowed");
    message.buffers = {make_test_buffer(kSize, i, Buffer::Sharing::kBorrowed), make_test_buffer(100, i),
                       make_test_buffer(77, i, Buffer::Sharing::kBorrowed)};
    mine.push_back(message.buffers[0]);
    mine.push_back(message.buffers[2]);
    auto ticket = pair.client->send(std::move(message));
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
  }
  for (uint64_t ticket : tickets) {
    pair.client->capture(ticket);
    EXPECT_FALSE(pair.client->borrows(ticket));
  }
  for (Buffer& buffer : mine) std::memset(buffer.data(), 0, buffer.size());
  pair.server_listener->resume();
  auto received = pair.server_listener->wait_for_messages(1 + kMessages);
  ASSERT_EQ(received.size(), 1 + kMessages);
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(is_test_buffer(received[1 + i].buffers[0], kSize, i)) << i;
    EXPECT_TRUE(is_test_buffer(received[1 + i].buffers[1], 100, i)) << i;
    EXPECT_TRUE(is_test_buffer(received[1 + i].buffers[2], 77, i)) << i;
  }
}

TEST_P(TransportConformance, CaptureWhileTheBytesAreBeingSentKeepsThem) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 12;
  constexpr std::size_t kSize = 700'000;
  Pair pair = connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&pair, t] {
      for (int i = 0; i < kMessages; ++i) {
        Message message = message_with(absl::StrCat(t * 100 + i));
        Buffer mine = make_test_buffer(kSize, t * 100 + i, Buffer::Sharing::kBorrowed);
        message.buffers = {mine};
        auto ticket = pair.client->send(std::move(message));
        ASSERT_TRUE(ticket.ok());
        pair.client->capture(*ticket);
        std::memset(mine.data(), 0, mine.size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto received = pair.server_listener->wait_for_messages(kThreads * kMessages);
  ASSERT_EQ(received.size(), kThreads * kMessages);
  for (const Message& message : received) {
    int seed = -1;
    ASSERT_TRUE(absl::SimpleAtoi(message.header, &seed));
    ASSERT_TRUE(is_test_buffer(message.buffers[0], kSize, seed));
  }
}

TEST_P(TransportConformance, CaptureOfASentOrUnknownMessageDoesNothing) {
  Pair pair = connect();
  auto ticket = pair.client->send(message_with("one"));
  ASSERT_TRUE(ticket.ok());
  ASSERT_EQ(pair.server_listener->wait_for_messages(1).size(), 1);
  pair.client->capture(*ticket);
  pair.client->capture(0);
  pair.client->capture(~uint64_t{0});
  ASSERT_TRUE(pair.client->send(message_with("two")).ok());
  EXPECT_EQ(pair.server_listener->wait_for_messages(2).size(), 2);
}

TEST_P(TransportConformance, ListenersMayAnswerFromTheirCalls) {
  constexpr int kMessages = 200;
  Pair pair = connect([](Connection& connection, const Message& message) {
    Message answer = message;
    answer.header += "!";
    EXPECT_TRUE(connection.send(std::move(answer)).ok());
  });
  for (int i = 0; i < kMessages; ++i) {
    Message message = message_with(absl::StrCat(i));
    message.buffers = {make_test_buffer(i * 1'000, i)};
    ASSERT_TRUE(pair.client->send(std::move(message)).ok());
  }
  auto answers = pair.client_listener->wait_for_messages(kMessages);
  ASSERT_EQ(answers.size(), kMessages);
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(answers[i].header, absl::StrCat(i, "!"));
    EXPECT_TRUE(is_test_buffer(answers[i].buffers[0], i * 1'000, i));
  }
}

}  // namespace
}  // namespace gradwire::transport
