// Tests that the receiver of a large message is notified when it begins to arrive.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/frame.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kSize = 8'000'017;

struct Announced {
  std::string header;
  uint64_t bytes = 0;
  uint64_t arrived = 0;
  std::size_t messages_before = 0;
};

// Records what is announced, and how many messages came before.
class Listener : public RecordingListener {
 public:
  void on_arriving(Connection& connection, const std::string& header, uint64_t bytes,
                   uint64_t arrived) override {
    const std::size_t before = message_count();
    MutexLock lock(mutex_);
    announced_.push_back({header, bytes, arrived, before});
    EXPECT_GE(connection.bytes_arrived(), arrived);
  }
  std::vector<Announced> announced() {
    MutexLock lock(mutex_);
    return announced_;
  }

 private:
  Mutex mutex_;
  std::vector<Announced> announced_ ABSL_GUARDED_BY(mutex_);
};

class TcpArriving : public testing::TestWithParam<int> {};

TEST_P(TcpArriving, LargeMessagesAreAnnouncedBeforeTheyAreComplete) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  options.stripes = GetParam();
  options.stripe_from_bytes = kMinStripedBytes;
  const auto server = make_tcp_transport(options);
  const auto client = make_tcp_transport(options);
  const auto at_server = std::make_shared<Listener>();
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
  const std::vector<Announced> announced = at_server->announced();
  ASSERT_EQ(announced.size(), kMessages);
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(announced[i].header, absl::StrCat("message ", i));
    EXPECT_EQ(announced[i].bytes, announced[i].header.size() + 10 + kSize);
    EXPECT_GE(announced[i].arrived, announced[i].header.size());
    EXPECT_LT(announced[i].arrived, announced[i].bytes);
    EXPECT_EQ(announced[i].messages_before, i);
  }
  client->shutdown();
  server->shutdown();
}

INSTANTIATE_TEST_SUITE_P(Stripes, TcpArriving, testing::Values(0, 2));

}  // namespace
}  // namespace gradwire::transport
