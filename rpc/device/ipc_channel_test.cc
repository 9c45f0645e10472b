#include "gradwire/rpc/device/ipc_channel.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/rpc/device/ipc_services.h"
#include "gradwire/rpc/device/testing/fake_devices.h"
#include "gradwire/rpc/device/testing/ipc_workers.h"

// The channel "ipc" without libtorch, used by many threads: ThreadSanitizer runs this test. The order of the
// protocol alone protects the memory of transfers (FakeBackend), so a transfer that ends too early is a data
// race. With tensors and processes: //tests/device_ipc.
namespace gradwire::rpc {
namespace {

using testing::fake_backend;
using testing::FakeBackend;
using testing::IpcWorker;

// Runs the functions on one thread each.
void run_together(std::vector<std::function<void()>> bodies) {
  std::vector<std::thread> threads;
  for (std::function<void()>& body : bodies) threads.emplace_back(std::move(body));
  for (std::thread& thread : threads) thread.join();
}

class IpcChannelTest : public ::testing::Test {
 protected:
  IpcChannelTest() {
    for (IpcWorker* const one : {&a_, &b_, &c_}) {
      for (IpcWorker* const other : {&a_, &b_, &c_}) {
        if (one < other) IpcWorker::introduce(*one, *other);
      }
    }
  }
  ~IpcChannelTest() override {
    for (IpcWorker* const worker : {&a_, &b_, &c_}) worker->stop();
    EXPECT_EQ(fake_backend().shared(), 0u);
    fake_backend().let_die(0);
  }

  // Waits until `from` shares memory with `to`.
  static bool warm_up(IpcWorker& from, IpcWorker& to) {
    return eventually([&] { return from.channel().can_send(to.incarnation(), testing::kDevice); });
  }

  // Sends messages until `stop`, or until `count` were sent. Connections break while messages are on their
  // way, and messages are cancelled before they are sent. `stable`: both workers are members all the time.
  static void send_messages(IpcWorker& from, IpcWorker& to, int seed, int count, bool stable,
                            const std::atomic<bool>* stop = nullptr) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<IpcWorker::Sent> on_link, late;
    for (int i = 0; i < count && (stop == nullptr || !*stop); ++i) {
      IpcWorker::Sent message =
          from.encode(to, absl::StrCat("tensor ", i, " of thread ", seed, " of ", from.self().name));
      if (!message.status.ok()) {
        EXPECT_FALSE(stable) << message.status;
        EXPECT_EQ(message.status.code(), absl::StatusCode::kUnavailable) << message.status;
        continue;
      }
      const auto what = random() % 8;
      // The call was cancelled before it was sent.
      if (what == 0) continue;
      from.depart(to, message);
      if (what == 1) {
        // The connection ends while the message is in its buffers, and it arrives much later.
        message.kept = nullptr;
        late.push_back(std::move(message));
      } else if (what == 2) {
        // The connection ends when the message arrives.
        from.deliver(to, message, /*read=*/true);
      } else if (what == 3) {
        from.deliver(to, message, /*read=*/false);
        on_link.push_back(std::move(message));
      } else {
        message.is_certain = stable;
        from.deliver(to, message, /*read=*/true);
        on_link.push_back(std::move(message));
      }
      if (late.size() > 10) {
        from.deliver(to, late.front(), /*read=*/true);
        late.erase(late.begin());
      }
      // The link forgets the messages that were taken.
      std::erase_if(on_link,
                    [](const IpcWorker::Sent& sent) { return sent.kept == nullptr || sent.kept->taken(); });
    }
    for (const IpcWorker::Sent& message : late) from.deliver(to, message, /*read=*/true);
    if (!stable) return;
    EXPECT_TRUE(eventually([&] {
      std::erase_if(on_link,
                    [](const IpcWorker::Sent& sent) { return sent.kept == nullptr || sent.kept->taken(); });
      return on_link.empty();
    }));
  }

  IpcWorker a_{"a", 1, /*open_after_forget=*/3};
  IpcWorker b_{"b", 2};
  IpcWorker c_{"c", 3};
};

TEST_F(IpcChannelTest, ManyThreadsSendAndEveryTransferEnds) {
  const uint64_t released = fake_backend().released();
  const uint64_t dropped = fake_backend().dropped();
  std::atomic<bool> done{false};
  std::thread observer([&] {
    while (!done) {
      for (IpcWorker* const worker : {&a_, &b_, &c_}) (void)worker->is_empty();
      std::this_thread::yield();
    }
  });
  std::vector<std::function<void()>> senders;
  int seed = 0;
  for (IpcWorker* const from : {&a_, &b_, &c_}) {
    for (IpcWorker* const to : {&a_, &b_, &c_}) {
      if (from == to) continue;
      ASSERT_TRUE(warm_up(*from, *to));
      for (int i = 0; i < 2; ++i) {
        senders.push_back([from, to, seed] { send_messages(*from, *to, seed, 200, /*stable=*/true); });
        ++seed;
      }
    }
  }
  run_together(std::move(senders));
  for (IpcWorker* const worker : {&a_, &b_, &c_})
    EXPECT_TRUE(eventually([&] { return worker->is_empty(); })) << worker->self().name;
  done = true;
  observer.join();
  EXPECT_EQ(fake_backend().shared(), 0u);
  EXPECT_GT(fake_backend().released(), released + 1000);
  EXPECT_EQ(fake_backend().dropped(), dropped);
  // Both ends of the race between a read and a Reclaim have occurred.
  EXPECT_GT(a_.reads() + b_.reads() + c_.reads(), 1000u);
  EXPECT_GT(a_.refusals() + b_.refusals() + c_.refusals(), 100u);
}

TEST_F(IpcChannelTest, AWorkerDiesWhileOthersSend) {
  fake_backend().let_die(c_.incarnation());
  for (IpcWorker* const one : {&a_, &b_}) {
    ASSERT_TRUE(warm_up(*one, c_));
    ASSERT_TRUE(warm_up(c_, *one));
  }
  ASSERT_TRUE(warm_up(a_, b_));
  std::atomic<bool> stop{false};
  constexpr int kMost = 100'000;
  const auto sender = [&](IpcWorker& from, IpcWorker& to, int seed, bool stable) {
    return [&from, &to, seed, stable, &stop] { send_messages(from, to, seed, kMost, stable, &stop); };
  };
  run_together({sender(a_, c_, 1, false), sender(a_, c_, 2, false), sender(b_, c_, 3, false),
                sender(c_, a_, 4, false), sender(c_, b_, 5, false), sender(a_, b_, 6, true), [&] {
                  EXPECT_TRUE(eventually([&] { return c_.reads() > 200; }));
                  c_.stop();
                  // The group agrees that it is dead. b has received its Goodbye before.
                  run_together({[&] { a_.lose(c_, /*dead=*/true); }, [&] { b_.lose(c_, /*dead=*/false); }});
                  stop = true;
                }});
  for (IpcWorker* const worker : {&a_, &b_}) {
    EXPECT_TRUE(eventually([&] { return worker->is_empty(); })) << worker->self().name;
    EXPECT_EQ(worker->sharing().forgotten(), std::vector<uint64_t>{c_.incarnation()});
    EXPECT_TRUE(eventually([&] { return worker->sharing().swept(); }));
    const IpcWorker::Sent message = worker->encode(c_, "to nobody");
    EXPECT_FALSE(message.has_transfer());
  }
}

TEST_F(IpcChannelTest, AShutDownEndsTransfersInBothDirections) {
  fake_backend().let_die(c_.incarnation());
  for (IpcWorker* const one : {&a_, &b_}) {
    ASSERT_TRUE(warm_up(*one, c_));
    ASSERT_TRUE(warm_up(c_, *one));
  }
  std::atomic<bool> stop{false};
  constexpr int kMost = 100'000;
  const auto sender = [&](IpcWorker& from, IpcWorker& to, int seed) {
    return [&from, &to, seed, &stop] { send_messages(from, to, seed, kMost, /*stable=*/false, &stop); };
  };
  run_together({sender(a_, c_, 1), sender(b_, c_, 2), sender(c_, a_, 3), sender(c_, b_, 4), [&] {
                  EXPECT_TRUE(eventually([&] { return c_.reads() > 200; }));
                  run_together({[&] { c_.channel().shutdown(); }, [&] { c_.channel().shutdown(); }});
                  c_.expect_no_reads();
                  EXPECT_TRUE(c_.sharing().closed());
                  EXPECT_EQ(c_.encode(a_, "too late").has_transfer(), false);
                  // Its threads go on, and messages to it still arrive.
                  run_together({[&] { a_.lose(c_, /*dead=*/false); }, [&] { b_.lose(c_, /*dead=*/false); }});
                  stop = true;
                }});
  for (IpcWorker* const worker : {&a_, &b_})
    EXPECT_TRUE(eventually([&] { return worker->is_empty(); })) << worker->self().name;
}

TEST_F(IpcChannelTest, AShutDownWaitsForTheThreadThatReads) {
  ASSERT_TRUE(warm_up(a_, b_));
  ASSERT_TRUE(warm_up(b_, a_));
  const IpcWorker::Sent message = a_.encode(b_, "read late");
  ASSERT_TRUE(message.has_transfer());
  const uint64_t number = message.payload.transfer().number();
  const std::shared_ptr<void> arrived = b_.channel().arrived(a_.incarnation(), number);
  ASSERT_TRUE(b_.channel().begin_read(a_.incarnation(), number).ok());
  // Only the wait in shutdown() orders the accesses of the two threads.
  bool reads = true;
  std::thread stops([&] {
    b_.channel().shutdown();
    EXPECT_FALSE(reads);
  });
  EXPECT_TRUE(eventually([&] { return !b_.channel().can_send(a_.incarnation(), testing::kDevice); }));
  reads = false;
  b_.channel().end_read(a_.incarnation(), number);
  stops.join();
  EXPECT_EQ(b_.channel().begin_read(a_.incarnation(), number).code(), absl::StatusCode::kUnavailable);
  a_.lose(b_, /*dead=*/false);
}

TEST_F(IpcChannelTest, ManyThreadsBeginOneProbe) {
  std::atomic<int> works{0};
  const auto ask = [&] {
    if (warm_up(a_, b_)) ++works;
  };
  run_together({ask, ask, ask, ask, ask, ask});
  EXPECT_EQ(works, 6);
  EXPECT_EQ(b_.calls(kSharingProbe), 1);
}

TEST_F(IpcChannelTest, AWorkerThatCannotReadIsAskedOnce) {
  using Reads = FakeBackend::Reads;
  for (const Reads reads : {Reads::kFail, Reads::kWrongBytes}) {
    IpcWorker* const worker = reads == Reads::kFail ? &b_ : &c_;
    fake_backend().set_reads(worker->incarnation(), reads);
    const auto ask = [&] {
      for (int i = 0; i < 100; ++i)
        EXPECT_FALSE(a_.channel().can_send(worker->incarnation(), testing::kDevice));
    };
    run_together({ask, ask, ask});
    EXPECT_TRUE(eventually([&] { return a_.is_empty() && worker->is_empty(); }));
    run_together({ask, ask, ask});
    EXPECT_TRUE(eventually([&] { return a_.is_empty(); }));
    EXPECT_EQ(worker->calls(kSharingProbe), 1);
    fake_backend().set_reads(worker->incarnation(), Reads::kRight);
  }
}

TEST_F(IpcChannelTest, ARefusalOfTheDriverIsFinal) {
  ASSERT_TRUE(warm_up(a_, b_));
  const auto refuse = [&] {
    a_.channel().refused(b_.incarnation(), testing::kDevice, absl::UnavailableError("no more handles"));
    EXPECT_FALSE(a_.channel().can_send(b_.incarnation(), testing::kDevice));
  };
  run_together({refuse, refuse, [&] { send_messages(a_, b_, 1, 200, /*stable=*/true); }});
  EXPECT_EQ(b_.calls(kSharingProbe), 1);
  EXPECT_TRUE(warm_up(a_, c_));
}

TEST_F(IpcChannelTest, AWorkerMayBeLostDuringItsProbe) {
  const auto ask = [&] {
    for (int i = 0; i < 100; ++i) (void)a_.channel().can_send(b_.incarnation(), testing::kDevice);
  };
  run_together({ask, ask, [&] {
                  b_.channel().shutdown();
                  a_.lose(b_, /*dead=*/false);
                }});
  EXPECT_TRUE(eventually([&] { return a_.is_empty(); }));
  EXPECT_FALSE(a_.channel().can_send(b_.incarnation(), testing::kDevice));
}

}  // namespace
}  // namespace gradwire::rpc
