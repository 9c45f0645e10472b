#include "gradwire/transport/tcp/socket/dial.h"

#include <sys/socket.h>

#include <memory>
#include <optional>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/failing_memory.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

// The address belongs to a listening socket with a full backlog, so there is no answer.
TEST(TcpDial, EndsAfterTheDeadlineWithoutMemory) {
  const Descriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = resolve_bind_addresses("127.0.0.1", 0)->front();
  ASSERT_EQ(::bind(listening.get(), address.get(), address.length), 0);
  ASSERT_EQ(::listen(listening.get(), 0), 0);
  ASSERT_EQ(::getsockname(listening.get(), address.get(), &address.length), 0);
  std::vector<Descriptor> fillers;
  for (int i = 0; i < 4; ++i) fillers.push_back(begin_to_connect(address));

  const std::shared_ptr<EventLoop> loop = *EventLoop::create();
  ASSERT_TRUE(loop->try_enter());
  const auto dial = std::make_shared<TcpDial>(*loop, "peer", std::vector<SocketAddress>{address});
  std::optional<absl::StatusCode> ended;
  dial->start_in_loop(Clock::system().now() + absl::Milliseconds(100),
                      [&](const absl::StatusOr<Descriptor>& socket) { ended = socket.status().code(); });
  EXPECT_TRUE(eventually([&] {
    const FailingMemory failing;
    loop->poll();
    return ended.has_value();
  }));
  EXPECT_EQ(ended, absl::StatusCode::kResourceExhausted);
  loop->leave();
  end(*loop);
}

}  // namespace
}  // namespace gradwire::transport
