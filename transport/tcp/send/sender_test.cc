#include "gradwire/transport/tcp/send/sender.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/failing_memory.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/wire/frame.h"

namespace gradwire::transport {
namespace {

class SenderConnection : public LoopConnection {
 public:
  using LoopConnection::LoopConnection;

  absl::StatusOr<uint64_t> send(Message) override { return absl::UnimplementedError("not used"); }
  void capture(uint64_t) override {}
  bool borrows(uint64_t) override { return false; }

  // Why the connection has ended.
  absl::Status end;

 private:
  void refuse_sends(const absl::Status&) override {}
  void flush_in_loop() override {}
  void release_in_loop(const absl::Status& reason) override { end = reason; }
};

// A stream whose writes do not succeed.
class ThrowingStream : public security::SecureStream {
 public:
  ssize_t read(absl::Span<const iovec>) override { return -1; }
  ssize_t write(absl::Span<const iovec>) override { throw std::bad_alloc(); }
  void end_writes() override {}
  absl::Status failure() const override { return absl::OkStatus(); }
};

class Sender : public ::testing::Test {
 protected:
  // More pieces than a thread writes before it leaves the rest to the loop.
  static constexpr int kPieces = 2'000;

  Sender() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    socket_ = Descriptor(ends[0]);
    peer_ = Descriptor(ends[1]);
  }
  ~Sender() override {
    sender_.end(absl::CancelledError("the test has ended"));
    end(*loop_);
  }

  // A message that is not copied, of many pieces.
  static Message message_of_pieces() {
    Message message;
    for (int i = 0; i < kPieces; ++i) {
      const auto owner = std::make_shared<std::string>("piece");
      message.buffers.emplace_back(owner->data(), owner->size(), owner);
    }
    return message;
  }
  void send(Message message) {
    bool want_stripes = false;
    EXPECT_TRUE(sender_.send(message, want_stripes).ok());
  }
  // The bytes that have reached the peer.
  std::size_t arrived() {
    std::string bytes(std::size_t{1} << 20, 0);
    for (ssize_t got; (got = ::recv(peer_.get(), bytes.data(), bytes.size(), 0)) > 0;)
      arrived_ += static_cast<std::size_t>(got);
    return arrived_;
  }
  void poll() {
    ASSERT_TRUE(loop_->try_enter());
    loop_->poll();
    loop_->leave();
  }

  std::shared_ptr<EventLoop> loop_ = *EventLoop::create();
  std::shared_ptr<SenderConnection> connection_ =
      std::make_shared<SenderConnection>(std::make_shared<LoopContext>(nullptr, loop_), "peer");
  TcpSender sender_{*connection_, Limits(), std::size_t{1} << 30};
  Descriptor socket_, peer_;
  std::size_t arrived_ = 0;
};

TEST_F(Sender, LeavesTheRestToATaskOfTheLoop) {
  send(message_of_pieces());
  sender_.start(socket_.get(), nullptr);
  sender_.write_queued();
  EXPECT_GT(sender_.queued_bytes(), 0);
  while (sender_.queued_bytes() > 0) poll();
  EXPECT_GT(arrived(), kPieces * std::size_t{5});
}

TEST_F(Sender, WritesTheRestItselfWithoutMemoryForATask) {
  send(message_of_pieces());
  sender_.start(socket_.get(), nullptr);
  {
    const FailingMemory failing;
    sender_.write_queued();
    EXPECT_GT(failing.failed(), 0);
  }
  EXPECT_EQ(sender_.queued_bytes(), 0);
  EXPECT_GT(arrived(), kPieces * std::size_t{5});
  // The loop gets a task again.
  send(message_of_pieces());
  EXPECT_GT(sender_.queued_bytes(), 0);
  while (sender_.queued_bytes() > 0) poll();
}

TEST_F(Sender, MessageWithoutMemoryLeavesNoPartOnAStripe) {
  TcpSender striped(*connection_, Limits(), kMinStripedBytes);
  striped.use_stripes({socket_.get(), peer_.get()});
  const auto bytes = std::make_shared<std::string>(3 * kMinStripedBytes, 'x');
  bool sent = false;
  int failures = 0;
  while (!sent) {
    Message message{"header", {Buffer(bytes->data(), bytes->size(), bytes)}};
    bool want_stripes = false;
    try {
      const FailingMemory failing(failures, 1);
      sent = striped.send(message, want_stripes).ok();
    } catch (const std::bad_alloc&) {
      ++failures;
      EXPECT_EQ(striped.queued_bytes(), 0) << "allocation " << failures;
    }
  }
  EXPECT_GT(failures, 2);
  striped.end(absl::CancelledError("the test has ended"));
}

TEST_F(Sender, WritesAMessageItselfWithoutMemoryForItsBatch) {
  sender_.start(socket_.get(), nullptr);
  // So that the queue has memory.
  send({.header = "first", .buffers = {}});
  const std::size_t first = arrived();
  const SendBatch batch;
  {
    Message message{.header = "second", .buffers = {}};
    bool want_stripes = false;
    const FailingMemory failing;
    EXPECT_TRUE(sender_.send(message, want_stripes).ok());
    EXPECT_GT(failing.failed(), 0);
  }
  EXPECT_GT(arrived(), first);
  // A later message waits for the batch again, and leaves with it.
  send({.header = "third", .buffers = {}});
  const std::size_t second = arrived();
  SendBatch::flush();
  EXPECT_GT(arrived(), second);
}

TEST_F(Sender, EndsTheConnectionWhenAStreamThrows) {
  ThrowingStream stream;
  sender_.start(socket_.get(), &stream);
  send({.header = "message", .buffers = {}});
  // Nobody waits for a write that has ended.
  EXPECT_EQ(sender_.cause_of_end("closed"), "closed");
  poll();
  EXPECT_EQ(connection_->end.code(), absl::StatusCode::kResourceExhausted) << connection_->end;
}

TEST_F(Sender, EndsWithoutMemory) {
  send(message_of_pieces());
  const absl::Status reason = absl::CancelledError("the connection has ended");
  const FailingMemory failing;
  sender_.end(reason);
  EXPECT_EQ(sender_.queued_bytes(), 0);
}

TEST_F(Sender, EndsTheSocketWithoutMemoryToReportAFailure) {
  send({.header = "message", .buffers = {}});
  ThrowingStream stream;
  sender_.start(socket_.get(), &stream);
  {
    const FailingMemory failing;
    sender_.write_queued();
  }
  poll();
  EXPECT_EQ(connection_->end, absl::OkStatus());
  // A read finds the end.
  char byte;
  EXPECT_EQ(::recv(socket_.get(), &byte, 1, 0), 0);
}

}  // namespace
}  // namespace gradwire::transport
