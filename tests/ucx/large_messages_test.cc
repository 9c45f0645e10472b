// How both ends of a connection over UCX report a large message on its way. UCX reports a buffer only when it
// is complete.

#include "gradwire/rpc/transfers/large_messages.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/security/credentials.h"
#include "gradwire/transport/ucx/ucx_transport.h"

namespace gradwire::rpc {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr char kWhole[] = "; the transport reports a tensor only when it is complete";

std::unique_ptr<transport::Transport> ucx_over_loop(std::shared_ptr<transport::EventLoop> loop) {
  transport::UcxOptions options;
  options.credentials = security::insecure_credentials();
  options.purpose = "test";
  options.own_name = "worker";
  options.bind_address = "127.0.0.1";
  options.methods = "tcp";
  return transport::make_ucx_transport(options, std::move(loop));
}

class LargeMessagesOverUcx : public ::testing::Test {
 protected:
  void SetUp() override { sides_.connect(); }

  // The end of the first buffer stops the loop of the sender, while the second one is on its way.
  void send() {
    auto first = std::make_shared<std::vector<char>>(kMiB);
    const std::shared_ptr<void> stops(first->data(), [first, this](void*) {
      first_sent_.set_value();
      go_on_.get_future().wait();
    });
    auto second = std::make_shared<std::vector<char>>(kLargeBytes);
    proto::Envelope envelope;
    envelope.mutable_request()->set_function("train");
    ASSERT_TRUE(sides_.link_to_b
                    ->send(envelope, {transport::Buffer(first->data(), kMiB, stops),
                                      transport::Buffer(second->data(), kLargeBytes, second)})
                    .ok());
    EXPECT_EQ(sides_.a.watch->size(), 1);
    EXPECT_TRUE(eventually([&] { return sides_.b.watch->size() == 1; }));
  }

  std::promise<void> first_sent_, go_on_;
  TwoTransferSides sides_{ucx_over_loop};
};

TEST_F(LargeMessagesOverUcx, LinesCountWholeTensorsAndSaySo) {
  ASSERT_NO_FATAL_FAILURE(send());
  first_sent_.get_future().wait();
  EXPECT_TRUE(sides_.a.pass_until_lines(1));
  EXPECT_TRUE(sides_.b.pass_until_lines(1));
  go_on_.set_value();
  EXPECT_TRUE(sides_.b.sink.wait_for_messages(2));
  EXPECT_TRUE(sides_.a.pass_until_ended());
  EXPECT_TRUE(sides_.b.pass_until_ended());
  const std::vector<std::string> sent = sides_.a.shown.texts(), received = sides_.b.shown.texts();
  EXPECT_THAT(sent.front(),
              StartsWith("worker \"a\" is sending the call of \"train\" to worker \"b\": 1.0 MiB of "
                         "65.0 MiB, "));
  EXPECT_THAT(sent.front(), EndsWith(kWhole));
  EXPECT_THAT(sent.back(),
              StartsWith("worker \"a\" has sent the call of \"train\" to worker \"b\": 65.0 MiB, "));
  EXPECT_THAT(received.front(),
              StartsWith("worker \"b\" is receiving the call of \"train\" from worker \"a\": "));
  EXPECT_THAT(received.front(), EndsWith(kWhole));
  EXPECT_THAT(received.back(),
              StartsWith("worker \"b\" has received the call of \"train\" from worker \"a\": 65.0 MiB, "));
  const ProgressState halfway = sides_.b.shown.states().front();
  EXPECT_LE(*halfway.done, static_cast<int64_t>(2 * kMiB));
  EXPECT_GT(*halfway.total, static_cast<int64_t>(kLargeBytes + kMiB));
}

}  // namespace
}  // namespace gradwire::rpc
