// Tests of shared memory between processes of different users of one host.

#include "gradwire/base/testing/other_user.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/shared_memory.h"
#include "gradwire/transport/shm/raw_peer.h"
#include "gradwire/transport/shm/shm_address.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

// Whether the address is listed in /proc/net/unix, which every user can read.
bool is_listed(const std::string& address) {
  const absl::StatusOr<ShmAddress> parsed = parse_shm_address(address);
  if (!parsed.ok()) return false;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (absl::EndsWith(line, absl::StrCat(" @gradwire-", parsed->name))) return true;
  }
  return false;
}

// Returns the number of packets that a peer gets from a transport, and the end: "3 packets, closed". A packet
// has bytes, or bytes and descriptors.
std::string receive_all(RawPeer& peer) {
  int packets = 0;
  while (peer.wait_and_receive()) ++packets;
  return absl::StrCat(packets, " packets, ", peer.ended() ? "closed" : "open");
}

class EchoListener : public ConnectionListener {
 public:
  void on_message(Connection& connection, Message message) override {
    (void)connection.send(std::move(message));
  }
  void on_closed(Connection&, absl::Status) override {}
};

// The commands of the process of another user, which plays both roles.
class OtherProcess {
 public:
  std::string operator()(const std::string& input) {
    const std::vector<std::string> words = absl::StrSplit(input, ' ');
    if (words[0] == "raw_connect") return raw_connect(words[1], false);
    if (words[0] == "raw_hello") return raw_connect(words[1], true);
    if (words[0] == "raw_listen") {
      raw_listener_ = std::make_unique<RawListener>();
      return raw_listener_->address();
    }
    if (words[0] == "raw_accept") {
      const std::unique_ptr<RawPeer> peer = raw_listener_->accept();
      return peer == nullptr ? "not accepted" : receive_all(*peer);
    }
    if (words[0] == "echo_at") return echo_at(words[1], words.size() > 2);
    if (words[0] == "serve") return serve();
    if (words[0] == "end") {
      server_->shutdown();
      server_.reset();
      return "ok";
    }
    return "unknown command";
  }

 private:
  static std::string raw_connect(const std::string& address, bool with_hello) {
    if (!is_listed(address)) return "not listed";
    RawPeer peer(address);
    if (peer.ended()) return "not connected";
    if (with_hello) peer.send_hello(kMinRingBytes, std::size_t{1} << 20);
    return receive_all(peer);
  }

  // Sends a message to the address, and returns the header of the answer, or the reason of the end.
  static std::string echo_at(const std::string& address, bool allow_root) {
    ShmOptions options;
    if (allow_root) options.allowed_users = {0};
    const auto client = make_shm_transport(options);
    const auto listener = std::make_shared<RecordingListener>();
    const auto connection = client->connect(address, listener, absl::Seconds(60));
    if (!connection.ok()) return connection.status().ToString();
    Message message;
    message.header = "from another user";
    message.buffers = {make_test_buffer(100'000, 1)};
    std::string answer;
    if ((*connection)->send(std::move(message)).ok()) {
      // The listener waits for a message or for the end.
      const std::vector<Message> messages = listener->wait_for_messages(1);
      if (!messages.empty()) answer = absl::StrCat(messages[0].header, " ", messages[0].buffers[0].size());
    }
    if (answer.empty()) answer = listener->wait_closed().ToString();
    client->shutdown();
    return answer;
  }

  std::string serve() {
    ShmOptions options;
    options.allowed_users = {0};
    server_ = make_shm_transport(options);
    const auto address =
        server_->listen([](const std::shared_ptr<Connection>&) { return std::make_shared<EchoListener>(); });
    return address.ok() ? *address : "";
  }

  std::unique_ptr<RawListener> raw_listener_;
  std::unique_ptr<Transport> server_;
};

class ShmOtherUser : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEEDS("root", OtherUser::available());
    other_ = std::make_unique<OtherUser>(
        [process = std::make_shared<OtherProcess>()](const std::string& input) { return (*process)(input); });
  }

  void TearDown() override {
    if (transport_ != nullptr) transport_->shutdown();
  }

  void start(std::vector<uid_t> allowed_users = {}) {
    ShmOptions options;
    options.allowed_users = std::move(allowed_users);
    transport_ = make_shm_transport(options);
    const auto address = transport_->listen([this](const std::shared_ptr<Connection>&) {
      ++accepted_;
      return std::make_shared<EchoListener>();
    });
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }

  // Sends a message to the address and waits for the answer.
  void expect_echo(const std::string& address) {
    const auto listener = std::make_shared<RecordingListener>();
    const auto connection = transport_->connect(address, listener, absl::Seconds(60));
    ASSERT_TRUE(connection.ok()) << connection.status();
    Message message;
    message.header = "from root";
    message.buffers = {make_test_buffer(100'000, 1)};
    ASSERT_TRUE((*connection)->send(std::move(message)).ok());
    const std::vector<Message> messages = listener->wait_for_messages(1);
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(messages[0].header, "from root");
    (*connection)->close(absl::OkStatus(), absl::ZeroDuration());
  }

  std::unique_ptr<OtherUser> other_;
  std::unique_ptr<Transport> transport_;
  std::string address_;
  std::atomic<int> accepted_{0};
};

TEST_F(ShmOtherUser, ClientThatFindsTheSocketGetsNothing) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(other_->ask("raw_connect " + address_), "0 packets, closed");
  EXPECT_EQ(other_->ask("raw_hello " + address_), "0 packets, closed");
  EXPECT_EQ(accepted_, 0);
  ASSERT_NO_FATAL_FAILURE(expect_echo(address_));
  EXPECT_EQ(accepted_, 1);
}

TEST_F(ShmOtherUser, ServerAtTheNameGetsNothing) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string address = other_->ask("raw_listen");
  const auto listener = std::make_shared<RecordingListener>();
  const auto connection = transport_->connect(address, listener, absl::Seconds(60));
  ASSERT_TRUE(connection.ok()) << connection.status();
  const absl::Status reason = listener->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  EXPECT_TRUE(absl::StrContains(reason.message(), absl::StrCat("belongs to user ", OtherUser::kUser)))
      << reason;
  EXPECT_EQ(other_->ask("raw_accept"), "0 packets, closed");
}

TEST_F(ShmOtherUser, AllowedUserIsServedInBothRoles) {
  ASSERT_NO_FATAL_FAILURE(start({OtherUser::kUser}));
  EXPECT_EQ(other_->ask("echo_at " + address_ + " allow_root"), "from another user 100000");
  ASSERT_NO_FATAL_FAILURE(expect_echo(other_->ask("serve")));
  EXPECT_EQ(other_->ask("end"), "ok");
}

TEST_F(ShmOtherUser, EachEndChecksTheOther) {
  ASSERT_NO_FATAL_FAILURE(start({OtherUser::kUser}));
  const std::string refused = other_->ask("echo_at " + address_);
  EXPECT_TRUE(absl::StrContains(refused, "belongs to user 0, expected user 65534")) << refused;
  EXPECT_EQ(accepted_, 0);
}

TEST_F(ShmOtherUser, RefusalsAreLoggedOnce) {
  ASSERT_NO_FATAL_FAILURE(start());
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(other_->ask("raw_connect " + address_), "0 packets, closed");
  const std::vector<std::string> lines = captured_lines("refused a connection through shared memory");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(absl::StrContains(lines[0], "belongs to user 65534, expected user 0")) << lines[0];
  EXPECT_TRUE(absl::StrContains(lines[0], "SecurityOptions::allowed_users")) << lines[0];
}

// The number of descriptors is the same afterwards, also after a hello with a descriptor.
TEST_F(ShmOtherUser, RefusalsLeaveNothingBehind) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(other_->ask("raw_hello " + address_), "0 packets, closed");
  const int before = count_descriptors();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(other_->ask("raw_hello " + address_), "0 packets, closed");
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST(ShmMemory, IsNotReachableByAnotherUser) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  // Answers whether the path can be opened for each of the purposes.
  OtherUser other([](const std::string& path) {
    std::string answer;
    for (const int flags : {O_RDONLY, O_RDWR, O_PATH}) {
      const Descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
      answer += file.valid() ? "opened " : errno == EACCES || errno == EPERM ? "refused " : "other error ";
    }
    return answer;
  });
  Descriptor descriptor;
  const auto memory = SharedMemory::create(4096, false, descriptor);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::string process = absl::StrCat("/proc/", ::getpid());
  const std::string path = absl::StrCat(process, "/fd/", descriptor.get());
  EXPECT_EQ(other.ask(path), "refused refused refused ");
  EXPECT_EQ(other.ask(process + "/fd/."), "refused refused refused ");
  EXPECT_EQ(other.ask(process + "/map_files/."), "refused refused refused ");
  EXPECT_TRUE(absl::StartsWith(other.ask(process + "/mem"), "refused refused "));
  // This process can open it by this path.
  EXPECT_TRUE(Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC)).valid());
}

TEST(ShmMemory, IsSealedAndBelongsToItsOwnerAlone) {
  Descriptor descriptor;
  const auto memory = SharedMemory::create(4096, false, descriptor);
  ASSERT_TRUE(memory.ok()) << memory.status();
  struct stat file = {};
  ASSERT_EQ(::fstat(descriptor.get(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600);
  constexpr int kExpected = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(::fcntl(descriptor.get(), F_GET_SEALS) & kExpected, kExpected);
  EXPECT_EQ(::ftruncate(descriptor.get(), 8192), -1);
  EXPECT_EQ(::ftruncate(descriptor.get(), 0), -1);
  EXPECT_EQ(::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

}  // namespace
}  // namespace gradwire::transport
