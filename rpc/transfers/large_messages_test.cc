// How both ends of a connection report a large message on its way.

#include "gradwire/rpc/transfers/large_messages.h"

#include <string>

#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<transport::Transport> make_transport(const std::string& kind,
                                                     std::shared_ptr<transport::EventLoop> loop) {
  if (kind == "shm") {
    transport::ShmOptions options;
    // Large messages find no room in the arena, and so they leave in parts.
    options.max_arena_bytes = std::size_t{1} << 20;
    return transport::make_shm_transport(options, std::move(loop));
  }
  transport::TcpOptions options;
  options.bind_address = "127.0.0.1";
  return transport::make_tcp_transport(options, std::move(loop));
}

class LargeMessages : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { sides_.connect(); }

  TwoTransferSides sides_{
      [](std::shared_ptr<transport::EventLoop> loop) { return make_transport(GetParam(), std::move(loop)); }};
  TransferSide& a_ = sides_.a;
  TransferSide& b_ = sides_.b;
};

TEST_P(LargeMessages, BothEndsSayHowACallGoes) {
  proto::Envelope envelope;
  envelope.mutable_request()->set_function("train");
  TwoTransferSides::expect_lines(a_, b_, *sides_.link_to_b, envelope, nullptr, "the call of \"train\"");
}

TEST_P(LargeMessages, BothEndsNameTheFunctionOfAnAnswer) {
  proto::Request request;
  request.set_function("train");
  proto::Envelope envelope;
  envelope.mutable_response()->set_call_id(7);
  TwoTransferSides::expect_lines(b_, a_, *b_.sink.last_link(), envelope, &request, "the answer of \"train\"");
}

TEST_P(LargeMessages, AConnectionThatEndsIsReported) {
  std::promise<void> go_on = a_.stop_loop();
  proto::Envelope envelope;
  envelope.mutable_request()->set_function("train");
  auto bytes = std::make_shared<std::vector<char>>(kLargeBytes);
  ASSERT_TRUE(sides_.link_to_b->send(envelope, {transport::Buffer(bytes->data(), kLargeBytes, bytes)}).ok());
  EXPECT_TRUE(eventually([&] { return b_.watch->size() == 1; }));
  EXPECT_TRUE(b_.pass_until_lines(1));
  b_.sink.last_link()->part("", absl::CancelledError("the test ends it"), absl::ZeroDuration());
  EXPECT_TRUE(b_.pass_until_ended());
  EXPECT_THAT(b_.shown.texts().back(),
              AllOf(StartsWith("worker \"b\" has not received the call of \"train\" from worker \"a\" "
                               "completely: the connection ended after "),
                    HasSubstr(" of 64.0 MiB")));
  go_on.set_value();
}

INSTANTIATE_TEST_SUITE_P(Transports, LargeMessages, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace gradwire::rpc
