// The client's part of PyTorch's store protocol, without libtorch: at a server of Gradwire, which speaks it
// too, and at servers that break it.

#include "gradwire/store/c10d/c10d_calls.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <thread>

#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/c10d/c10d_client.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/interface/limits.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::ElementsAre;

Clock& system_clock() { return Clock::system(); }

class C10dCallsTest : public ::testing::Test {
 protected:
  C10dSocket connect() {
    C10dSocket::Server server;
    C10dSocket socket = value_or_throw(C10dSocket::open({{"localhost", server_->port()}}, system_clock(),
                                                        system_clock().now() + absl::Seconds(60), server));
    EXPECT_EQ(server, C10dSocket::Server::kGradwire);
    return socket;
  }
  static proto::Response call(C10dSocket& socket, const proto::Request& request,
                              absl::Duration timeout = absl::Seconds(60)) {
    proto::Response response;
    bool broken;
    const absl::Status status =
        C10dCalls(socket, system_clock(), system_clock().now() + timeout).run(request, response, broken);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_FALSE(broken);
    return response;
  }
  static void set(C10dSocket& socket, const std::string& key, const std::string& value) {
    proto::Request request;
    request.mutable_set()->set_key(key);
    request.mutable_set()->set_value(value);
    call(socket, request);
  }
  static proto::Request wait_for(const std::vector<std::string>& keys) {
    proto::Request request;
    pack_keys(keys, *request.mutable_wait()->mutable_keys());
    return request;
  }

  std::unique_ptr<TcpStoreServer> server_ = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
};

TEST_F(C10dCallsTest, WaitIsCancelledAndTheConnectionGoesOn) {
  C10dSocket socket = connect();
  set(socket, "there", "");
  const proto::Response response = call(socket, wait_for({"there", "absent"}), absl::Milliseconds(20));
  EXPECT_THAT(*unpack_keys(response.wait().missing()), ElementsAre("absent"));
  EXPECT_EQ(server_->num_waiters(), 0);
  proto::Request values = wait_for({"there", "there"});
  values.mutable_wait()->set_with_values(true);
  EXPECT_THAT(*unpack_keys(call(socket, values).wait().values()), ElementsAre("", ""));
}

TEST_F(C10dCallsTest, WatchSeesTheChangeOfAnother) {
  C10dSocket socket = connect(), other = connect();
  set(socket, "key", "one");
  proto::Request watch;
  watch.mutable_watch()->set_key("key");
  watch.mutable_watch()->set_last_value("one");
  EXPECT_FALSE(call(socket, watch, absl::Milliseconds(20)).watch().has_value());
  std::thread changer([&] { set(other, "key", "two"); });
  EXPECT_EQ(call(socket, watch).watch().value(), "two");
  changer.join();
}

TEST_F(C10dCallsTest, PopWaitsForAnItem) {
  C10dSocket socket = connect(), other = connect();
  proto::Request pop;
  pop.mutable_queue_pop()->set_queue("queue");
  EXPECT_FALSE(call(socket, pop, absl::ZeroDuration()).queue_pop().has_value());
  std::thread pusher([&] {
    proto::Request push;
    push.mutable_queue_push()->set_queue("queue");
    push.mutable_queue_push()->set_value("item");
    call(other, push);
  });
  EXPECT_EQ(call(socket, pop).queue_pop().value(), "item");
  pusher.join();
}

TEST_F(C10dCallsTest, ServerOfGradwireIsNotTakenForOneOfPyTorch) {
  EXPECT_FALSE(C10dClient::find_server({{"localhost", server_->port()}}, system_clock(),
                                       system_clock().now() + absl::Seconds(60))
                   .has_value());
}

// A server that answers the greeting like one of PyTorch and the first later part with `answer`.
class FakeServer {
 public:
  explicit FakeServer(std::string answer)
      : FakeServer([answer = std::move(answer)](int client) {
          char more[4096];
          if (::recv(client, more, sizeof(more), 0) <= 0 || answer.empty()) return;
          ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
          while (::recv(client, more, sizeof(more), 0) > 0) {
          }
        }) {}
  // `talk` serves one client after the greeting.
  explicit FakeServer(std::function<void(int client)> talk) : talk_(std::move(talk)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
    ::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeServer() {
    ::shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }
  // Number of connections that have been accepted.
  int accepted() const { return accepted_; }

 private:
  void serve() {
    while (true) {
      const Descriptor client(::accept(listening_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      ++accepted_;
      char bytes[10];
      if (::recv(client.get(), bytes, sizeof(bytes), MSG_WAITALL) != 10) continue;
      // PyTorch's server closes the connection of a client with another greeting.
      if (absl::string_view(bytes, kC10dGreeting.size()) != kC10dGreeting) continue;
      ::send(client.get(), bytes + 6, 4, MSG_NOSIGNAL);
      talk_(client.get());
    }
  }

  const std::function<void(int client)> talk_;
  const Descriptor listening_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port_ = 0;
  std::atomic<int> accepted_{0};
  std::thread thread_;
};

// Its time passes only in pauses, which it counts.
class PausingClock : public Clock {
 public:
  absl::Time now() const override { return Clock::system().now() + skipped_; }
  void wait_until(Mutex&, CondVar&, absl::Time deadline) override {
    ++pauses_;
    skipped_ += deadline - now();
  }
  int pauses() const { return pauses_; }

 private:
  absl::Duration skipped_;
  int pauses_ = 0;
};

// Answers the queries of a wait as if another client set the key and deleted it again.
void serve_a_fleeting_key(int socket) {
  const auto read = [socket](std::size_t size) {
    std::string bytes(size, '\0');
    if (::recv(socket, bytes.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size)) bytes.clear();
    return bytes;
  };
  while (true) {
    const std::string query = read(1);
    if (query.empty()) return;
    char answer = kC10dWaitCancelled;
    if (static_cast<C10dQuery>(query[0]) != C10dQuery::kCancelWait) {
      // One key, "/k", with its length, and the number of keys.
      read(8 + 8 + 2);
      answer = static_cast<C10dQuery>(query[0]) == C10dQuery::kWait ? kC10dStopWaiting : kC10dNotReady;
    }
    ::send(socket, &answer, 1, MSG_NOSIGNAL);
  }
}

TEST(C10dCalls, WaitForAKeyThatIsDeletedAgainPausesBetweenItsAttempts) {
  const FakeServer server(serve_a_fleeting_key);
  PausingClock clock;
  C10dSocket::Server kind;
  C10dSocket socket = value_or_throw(
      C10dSocket::open({{"localhost", server.port()}}, clock, clock.now() + absl::Seconds(60), kind));
  proto::Request request;
  pack_keys({"k"}, *request.mutable_wait()->mutable_keys());
  proto::Response response;
  bool broken;
  const absl::Status status =
      C10dCalls(socket, clock, clock.now() + absl::Seconds(2)).run(request, response, broken);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(*unpack_keys(response.wait().missing()), ElementsAre("k"));
  // The pauses get longer, so a few fill the time.
  EXPECT_GT(clock.pauses(), 3);
}

absl::Status get_from(const FakeServer& server) {
  C10dClient client({.target = {{"localhost", server.port()}}, .name = "TcpStore at test"}, system_clock());
  proto::Request request;
  request.mutable_compare_set()->set_key("key");
  return client.call(request, system_clock().now() + absl::Seconds(60), StoreCaller::Kind::kOnce).status();
}

TEST(C10dClient, AnswerOverTheLimitIsRefusedBeforeItsBytesArrive) {
  std::string huge;
  put_c10d_number(huge, kMaxValueBytes + 1, 8);
  const absl::Status status = get_from(FakeServer(huge));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(C10dClient, ServerThatAnnouncesTooManyKeysIsRefusedAtOnce) {
  std::string count;
  put_c10d_number(count, kMaxListBytes, 8);
  const FakeServer server(count);
  C10dClient client({.target = {{"localhost", server.port()}}, .name = "TcpStore at test"}, system_clock());
  proto::Request request;
  request.mutable_list_keys();
  const absl::Status status =
      client.call(request, system_clock().now() + absl::Seconds(60), StoreCaller::Kind::kOnce).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

// Each connection costs PyTorch's server a query to the name service, during which it serves no client.
TEST(C10dClient, StoreNeedsOneConnectionToFindOutTheProtocolAndOneForItsCalls) {
  std::string sum;
  put_c10d_number(sum, 1, 8);
  const FakeServer server(sum);
  TcpStore store("localhost", server.port());
  EXPECT_EQ(server.accepted(), 2);
  EXPECT_EQ(store.add("key", 1), 1);
  EXPECT_EQ(server.accepted(), 2);
}

TEST(C10dClient, ServerThatClosesIsUnavailableAndACallIsNotRepeated) {
  const absl::Status status = get_from(FakeServer(""));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("TcpStore at test"));
}

}  // namespace
}  // namespace gradwire::store
