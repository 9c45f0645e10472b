// Tests of connections between two processes, with the methods that UCX chooses and with given methods.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

// An echo_process that runs until this object is destroyed.
class Peer {
 public:
  explicit Peer(const char* methods) {
    int in[2], out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      const char* const program = "transport/ucx/echo_process";
      ::execl(program, program, methods, nullptr);
      ::_exit(127);
    }
    input_ = Descriptor(in[1]);
    ::close(in[0]);
    ::close(out[1]);
    output_ = Descriptor(out[0]);
    // UCX writes its messages to the same stream.
    while (!absl::ConsumePrefix(&line_, "address ") && read_line()) {
    }
    address_ = std::string(line_);
  }

  ~Peer() {
    input_.reset();
    if (pid_ > 0) {
      EXPECT_EQ(wait(), 0);
    }
  }

  const std::string& address() const { return address_; }

  void signal(int number) const { ::kill(pid_, number); }

  void kill() {
    signal(SIGKILL);
    EXPECT_NE(wait(), 0);
  }

 private:
  bool read_line() {
    text_.clear();
    char byte;
    while (::read(output_.get(), &byte, 1) == 1) {
      line_ = text_;
      if (byte == '\n') return true;
      text_ += byte;
    }
    return false;
  }

  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

  pid_t pid_ = -1;
  Descriptor input_;
  Descriptor output_;
  std::string text_;
  absl::string_view line_;
  std::string address_;
};

Message text_message(std::string header) {
  Message message;
  message.header = std::move(header);
  return message;
}

class UcxBetweenProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  void connect(const Peer& peer) {
    UcxOptions options;
    options.methods = GetParam();
    options.credentials = security::insecure_credentials();
    transport_ = make_ucx_transport(options);
    listener_ = std::make_shared<RecordingListener>();
    auto connection = transport_->connect(peer.address(), listener_, absl::Seconds(30));
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
  }

  std::unique_ptr<Transport> transport_;
  std::shared_ptr<RecordingListener> listener_;
  std::shared_ptr<Connection> connection_;
};

TEST_P(UcxBetweenProcesses, MessagesOfAllSizesComeBack) {
  Peer peer(GetParam());
  connect(peer);
  std::size_t count = 0;
  for (std::size_t size : {0u, 1u, 63u, 4'096u, 65'535u, 65'536u, 300'000u, 8'000'000u}) {
    for (int i = 0; i < 5; ++i) {
      Message message = text_message(absl::StrCat(count));
      message.buffers = {make_test_buffer(size, count), make_test_buffer(i, count)};
      ASSERT_TRUE(connection_->send(std::move(message)).ok());
      const std::vector<Message> received = listener_->wait_for_messages(count + 1);
      ASSERT_EQ(received.size(), count + 1);
      EXPECT_EQ(received[count].header, absl::StrCat(count));
      ASSERT_EQ(received[count].buffers.size(), 2);
      EXPECT_TRUE(is_test_buffer(received[count].buffers[0], size, count));
      EXPECT_TRUE(is_test_buffer(received[count].buffers[1], i, count));
      ++count;
    }
  }
  transport_->shutdown();
}

TEST_P(UcxBetweenProcesses, ManyInFlightComeBackInOrder) {
  constexpr int kMessages = 20'000;
  Peer peer(GetParam());
  connect(peer);
  for (int i = 0; i < kMessages; ++i) {
    Message message = text_message(absl::StrCat(i));
    if (i % 100 == 0) message.buffers = {make_test_buffer(70'000, i)};
    ASSERT_TRUE(connection_->send(std::move(message)).ok());
  }
  const std::vector<Message> received = listener_->wait_for_messages(kMessages);
  ASSERT_EQ(received.size(), kMessages);
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(received[i].header, absl::StrCat(i));
    if (i % 100 == 0) {
      ASSERT_TRUE(is_test_buffer(received[i].buffers[0], 70'000, i));
    }
  }
  transport_->shutdown();
}

TEST_P(UcxBetweenProcesses, APeerThatIsKilledIsUnavailableAndItsBuffersStay) {
  Peer peer(GetParam());
  connect(peer);
  Message message;
  message.buffers = {make_test_buffer(3'000'000, 1)};
  ASSERT_TRUE(connection_->send(std::move(message)).ok());
  const std::vector<Message> received = listener_->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  peer.kill();
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(connection_->send(text_message("late")).status().code(), absl::StatusCode::kUnavailable);
  transport_->shutdown();
  transport_.reset();
  connection_.reset();
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], 3'000'000, 1));
  std::memset(received[0].buffers[0].data(), 0, 3'000'000);
}

TEST_P(UcxBetweenProcesses, PeerThatIsKilledWithManyMessagesInFlightIsUnavailable) {
  Peer peer(GetParam());
  connect(peer);
  ASSERT_TRUE(connection_->send(text_message("first")).ok());
  ASSERT_EQ(listener_->wait_for_messages(1).size(), 1);
  // The stopped peer receives nothing any more.
  peer.signal(SIGSTOP);
  std::weak_ptr<void> owner;
  for (int i = 0; i < 20; ++i) {
    Message message = text_message("more");
    message.buffers = {make_test_buffer(3'000'000, i)};
    owner = message.buffers[0].owner();
    ASSERT_TRUE(connection_->send(std::move(message)).ok());
  }
  peer.kill();
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(listener_->message_count(), 1);
  transport_->shutdown();
  transport_.reset();
  connection_.reset();
  EXPECT_TRUE(owner.expired());
}

TEST_P(UcxBetweenProcesses, ShutdownDoesNotWaitLongForAPeerThatReceivesNothing) {
  Peer peer(GetParam());
  connect(peer);
  ASSERT_TRUE(connection_->send(text_message("first")).ok());
  ASSERT_EQ(listener_->wait_for_messages(1).size(), 1);
  peer.signal(SIGSTOP);
  std::weak_ptr<void> owner;
  {
    Message message = text_message("more");
    message.buffers = {make_test_buffer(3'000'000, 1)};
    owner = message.buffers[0].owner();
    ASSERT_TRUE(connection_->send(std::move(message)).ok());
  }
  transport_->shutdown();
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(owner.expired());
  peer.signal(SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(Methods, UcxBetweenProcesses, ::testing::Values("", "tcp"),
                         [](const auto& info) { return std::string(*info.param == 0 ? "any" : info.param); });

}  // namespace
}  // namespace gradwire::transport
