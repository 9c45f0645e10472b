// Tests of connections between two processes.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

// An echo_process that runs until this object is destroyed.
class Peer {
 public:
  explicit Peer(const std::string& wait, const std::string& max_arena_bytes = "1000000000") {
    int in[2], out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      const char* const program = "transport/shm/echo_process";
      ::execl(program, program, wait.c_str(), max_arena_bytes.c_str(), nullptr);
      ::_exit(127);
    }
    input_ = Descriptor(in[1]);
    output_ = Descriptor(out[0]);
    ::close(in[0]);
    ::close(out[1]);
    address_ = line();
  }

  ~Peer() {
    input_.reset();
    if (pid_ > 0) {
      EXPECT_EQ(wait(), 0);
    }
  }

  const std::string& address() const { return address_; }

  // The next line that the process prints.
  std::string line() {
    std::string text;
    char byte;
    while (::read(output_.get(), &byte, 1) == 1 && byte != '\n') text += byte;
    return text;
  }

  void kill() {
    ::kill(pid_, SIGKILL);
    EXPECT_NE(wait(), 0);
  }

 private:
  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

  pid_t pid_ = -1;
  Descriptor input_;
  Descriptor output_;
  std::string address_;
};

Message text_message(std::string header) {
  Message message;
  message.header = std::move(header);
  return message;
}

class BetweenProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  void connect(const Peer& peer) {
    ShmOptions options;
    if (GetParam() == std::string("sleep")) options.wait = {absl::ZeroDuration(), absl::ZeroDuration()};
    transport_ = make_shm_transport(options);
    listener_ = std::make_shared<RecordingListener>();
    auto connection = transport_->connect(peer.address(), listener_, absl::Seconds(30));
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
  }

  std::unique_ptr<Transport> transport_;
  std::shared_ptr<RecordingListener> listener_;
  std::shared_ptr<Connection> connection_;
};

TEST_P(BetweenProcesses, MessagesOfAllSizesComeBack) {
  Peer peer(GetParam());
  connect(peer);
  int count = 0;
  for (std::size_t size : {0u, 1u, 63u, 4'096u, 4'097u, 100'000u, 8'000'000u}) {
    for (int i = 0; i < 20; ++i) {
      Message message = text_message(absl::StrCat(count));
      message.buffers = {make_test_buffer(size, count), make_test_buffer(i, count)};
      ASSERT_TRUE(connection_->send(std::move(message)).ok());
      const std::vector<Message> received = listener_->wait_for_messages(count + 1);
      ASSERT_EQ(received.size(), count + 1);
      EXPECT_EQ(received[count].header, absl::StrCat(count));
      ASSERT_EQ(received[count].buffers.size(), 2);
      if (i == 0) {
        EXPECT_TRUE(is_test_buffer(received[count].buffers[0], size, count));
      }
      EXPECT_TRUE(is_test_buffer(received[count].buffers[1], i, count));
      ++count;
      // Only some of the large messages are sent: `received` keeps all of them, and the arena would be
      // exhausted.
      if (size > 1'000'000 && i == 5) break;
    }
  }
  transport_->shutdown();
}

TEST_P(BetweenProcesses, ManyInFlightComeBackInOrder) {
  constexpr int kMessages = 20'000;
  Peer peer(GetParam());
  connect(peer);
  for (int i = 0; i < kMessages; ++i) {
    Message message = text_message(absl::StrCat(i));
    if (i % 100 == 0) message.buffers = {make_test_buffer(20'000, i)};
    ASSERT_TRUE(connection_->send(std::move(message)).ok());
  }
  const std::vector<Message> received = listener_->wait_for_messages(kMessages);
  ASSERT_EQ(received.size(), kMessages);
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(received[i].header, absl::StrCat(i));
    if (i % 100 == 0) {
      ASSERT_TRUE(is_test_buffer(received[i].buffers[0], 20'000, i));
    }
  }
  transport_->shutdown();
}

TEST_P(BetweenProcesses, APeerThatIsKilledIsUnavailableAndItsBuffersStay) {
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

TEST_P(BetweenProcesses, APeerThatIsKilledInTheMiddleOfAMessageIsUnavailable) {
  // Without an arena the message goes through the ring, which is soon full.
  Peer peer(GetParam(), "0");
  const int descriptors = count_descriptors();
  connect(peer);
  listener_->hold_back();
  ASSERT_TRUE(connection_->send(text_message("stream 10000000")).ok());
  EXPECT_EQ(peer.line(), "sent");
  peer.kill();
  listener_->resume();
  const absl::Status reason = listener_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reason.message().find("in the middle of a message"), std::string::npos) << reason;
  EXPECT_EQ(listener_->message_count(), 1);
  transport_->shutdown();
  transport_.reset();
  connection_.reset();
  EXPECT_EQ(count_descriptors_down_to(descriptors), descriptors);
}

INSTANTIATE_TEST_SUITE_P(Waiting, BetweenProcesses, ::testing::Values("default", "sleep"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gradwire::transport
