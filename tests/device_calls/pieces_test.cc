#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/device/streams.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device_calls/carried.h"
#include "gradwire/tests/device_calls/expectations.h"
#include "gradwire/transport/process_counts.h"

// Large tensors that travel through the host: in pieces, of which the first are sent while the others are
// still on their way from the device.
namespace gradwire::rpc {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMebi = int64_t{1} << 20;
constexpr int64_t kPiece = 4 * kMebi;

at::Tensor moved_to(int device, const at::Tensor& x) {
  return x.to(lag::device(device), /*non_blocking=*/true);
}

at::Tensor echo_in_pieces(const at::Tensor& x) { return x; }
GRADWIRE_RPC(echo_in_pieces)

Tensors echo_all(const Tensors& tensors) { return tensors; }
GRADWIRE_RPC(echo_all)

at::Tensor strided(const at::Tensor& x) { return x.t(); }
GRADWIRE_RPC(strided)

// Stops lag:1 in a handler, until a test ends it.
std::optional<lag::StreamHold>& hold() {
  static auto* const hold = new std::optional<lag::StreamHold>;
  return *hold;
}

// The second result is computed only when the hold has ended.
Tensors slowly(const at::Tensor& x) {
  lag::synchronize_all();
  hold().emplace(device::current_stream(lag::device(1)));
  return {x, moved_to(1, at::ones({1000})) * 2};
}
GRADWIRE_RPC(slowly)

// The argument: the transport, as for Carried::over().
class Pieces : public ::testing::TestWithParam<const char*> {
 protected:
  Pieces() { lag::set_lag({}); }
  ~Pieces() override {
    group_.expect_empty();
    carried_.expect_only(GetParam(), kPiece);
  }

  // Waits until most of a tensor of 20 MiB has arrived at a worker that had received `before` bytes.
  bool most_has_arrived(std::size_t worker, uint64_t before) {
    return eventually([&] { return group_[worker]->statistics().bytes_received >= before + 16 * kMebi; });
  }

  // Calls worker1 with `x`, and with a tensor on the current stream of lag:1, which is held. Returns when
  // parts of the message have arrived.
  Future<Tensors> begin_call(const at::Tensor& x) {
    Future<Tensors> call =
        group_[0]->rpc_async<&echo_all>("worker1", Tensors{x, moved_to(1, at::ones({1000}))});
    EXPECT_TRUE(parts_have_arrived(1));
    return call;
  }
  bool parts_have_arrived(std::size_t worker) {
    return eventually([&] { return group_[worker]->tables().parted_messages == 1; }) &&
           carried_.parts(GetParam()) > 0;
  }
  bool parts_are_gone(std::size_t worker) {
    return eventually([&] { return group_[worker]->tables().parted_messages == 0; });
  }

  Carried carried_;
  NothingLeft after_the_group_;
  testing::Group group_{2, carried_.over(GetParam(), with_channels({"host"}))};
};
INSTANTIATE_TEST_SUITE_P(Transports, Pieces, ::testing::Values("shm", "tcp", "striped"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Pieces, TensorsOfAllSizesArriveAsTheyAre) {
  const int64_t floats = kPiece / 4;
  for (const int64_t size : {floats - 1, floats, floats + 1, 2 * floats, 5 * floats + 3}) {
    const at::Tensor x = at::rand({size});
    expect_equal(group_[0]->rpc_sync<&echo_in_pieces>("worker1", moved_to(0, x)), x);
  }
  const at::Tensor matrix = at::rand({1100, 2001});
  for (const at::Tensor& x :
       {matrix.t(), matrix.slice(1, 1, 2000, 2), matrix > 0.5, matrix.to(at::kDouble),
        matrix.to(at::kHalf).repeat({3, 1}), at::complex(matrix, matrix).to(at::kComplexDouble),
        at::arange(10'000'000).to(at::kChar), matrix.expand({3, 1100, 2001})}) {
    expect_equal(group_[0]->rpc_sync<&echo_in_pieces>("worker1", moved_to(0, x)), x);
  }
  expect_equal(group_[0]->rpc_sync<&strided>("worker1", moved_to(0, matrix)), matrix.t());
}

TEST_P(Pieces, TensorsInOneMessageKeepTheirPlaces) {
  Tensors expected;
  for (int64_t i = 0; i < 6; ++i) expected.push_back(at::rand({i % 3 == 2 ? 10 : i * kMebi + 5}));
  Tensors sent;
  for (std::size_t i = 0; i < expected.size(); ++i)
    sent.push_back(i % 2 == 0 ? moved_to(static_cast<int>(i / 2), expected[i]) : expected[i]);
  const Tensors got = group_[0]->rpc_sync<&echo_all>("worker1", sent);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].device(), sent[i].device());
    expect_equal(got[i], expected[i]);
  }
}

TEST_P(Pieces, ArgumentsAreSentWhileAnotherDeviceIsBusy) {
  const at::Tensor large = at::rand({5 * kMebi}), small = at::rand({1000});
  const at::Tensor x = moved_to(0, large);
  (void)group_[0]->rpc_sync<&echo_in_pieces>("worker1", at::ones({1}));
  lag::synchronize_all();
  const c10::Stream stream = lag::new_stream(1);
  const c10::StreamGuard guard(stream);
  const uint64_t before = group_[1]->statistics().bytes_received;
  lag::StreamHold busy(stream);
  const Future<Tensors> call = group_[0]->rpc_async<&echo_all>("worker1", Tensors{x, moved_to(1, small)});
  EXPECT_TRUE(most_has_arrived(1, before));
  EXPECT_TRUE(parts_have_arrived(1));
  EXPECT_FALSE(call.done());
  busy.release();
  const Tensors got = call.wait();
  expect_equal(got[0], large);
  expect_equal(got[1], small);
}

TEST_P(Pieces, ResultsAreSentWhileAnotherDeviceIsBusy) {
  const at::Tensor large = at::rand({5 * kMebi});
  const at::Tensor x = moved_to(0, large);
  (void)group_[0]->rpc_sync<&echo_in_pieces>("worker1", at::ones({1}));
  const uint64_t before = group_[0]->statistics().bytes_received;
  const Future<Tensors> call = group_[0]->rpc_async<&slowly>("worker1", x);
  EXPECT_TRUE(most_has_arrived(0, before));
  EXPECT_TRUE(parts_have_arrived(0));
  EXPECT_FALSE(call.done());
  hold().reset();
  const Tensors got = call.wait();
  expect_equal(got[0], large);
  expect_equal(got[1], at::full({1000}, 2.0));
}

TEST_P(Pieces, ACancelledCallLeavesNoParts) {
  const at::Tensor x = moved_to(0, at::rand({5 * kMebi}));
  lag::synchronize_all();
  const c10::Stream stream = lag::new_stream(1);
  const c10::StreamGuard guard(stream);
  lag::StreamHold busy(stream);
  const Future<Tensors> call = begin_call(x);
  call.cancel();
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kCancelled);
  busy.release();
  EXPECT_TRUE(parts_are_gone(1));
}

TEST_P(Pieces, ALostConnectionLeavesNoParts) {
  const at::Tensor large = at::rand({5 * kMebi});
  const at::Tensor x = moved_to(0, large);
  (void)group_[0]->rpc_sync<&echo_in_pieces>("worker1", at::ones({1}));
  lag::synchronize_all();
  {
    const c10::Stream stream = lag::new_stream(1);
    const c10::StreamGuard guard(stream);
    lag::StreamHold busy(stream);
    const uint64_t before = carried_.bytes(GetParam());
    const Future<Tensors> call = begin_call(x);
    ASSERT_TRUE(eventually([&] { return carried_.bytes(GetParam()) >= before + 20 * kMebi; }));
    // The first part of the second call ends the connection. The others are not sent ahead any more.
    carried_.cut_at_next_part();
    const Future<Tensors> other =
        group_[0]->rpc_async<&echo_all>("worker1", Tensors{x, moved_to(1, at::ones({1}))});
    EXPECT_TRUE(parts_are_gone(1));
    // Once a call is answered, worker0 uses another connection.
    EXPECT_TRUE(eventually(
        [&] { return group_[0]->rpc_async<&echo_in_pieces>("worker1", at::ones({1})).result().ok(); }));
    busy.release();
    // The messages travel on the next connection, with the buffers that were sent ahead on the first one.
    for (const Future<Tensors>& one : {call, other}) expect_equal(one.wait()[0], large);
  }
  expect_equal(group_[0]->rpc_sync<&echo_in_pieces>("worker1", x), large);
}

TEST_P(Pieces, ALostDeviceLeavesNoParts) {
  const at::Tensor x = moved_to(0, at::rand({5 * kMebi}));
  lag::synchronize_all();
  {
    const c10::Stream stream = lag::new_stream(1);
    const c10::StreamGuard guard(stream);
    lag::StreamHold busy(stream);
    const Future<Tensors> call = begin_call(x);
    lag::lose(1, "fell off the bus");
    EXPECT_FALSE(call.result().ok());
    EXPECT_TRUE(parts_are_gone(1));
    busy.release();
  }
  lag::restore(1);
}

using StripedPieces = Pieces;
INSTANTIATE_TEST_SUITE_P(Transports, StripedPieces, ::testing::Values("striped"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StripedPieces, TravelOverSeveralSockets) {
  (void)group_[0]->rpc_sync<&echo_in_pieces>("worker1", at::ones({1}));
  const int descriptors = transport::count_descriptors();
  const at::Tensor x = at::rand({5 * kMebi});
  expect_equal(group_[0]->rpc_sync<&echo_in_pieces>("worker1", moved_to(0, x)), x);
  // Both ends of each stripe are in this process.
  EXPECT_TRUE(
      eventually([&] { return transport::count_descriptors() == descriptors + 2 * Carried::kStripes; }));
  for (int i = 0; i < 5; ++i)
    expect_equal(group_[0]->rpc_sync<&echo_in_pieces>("worker1", moved_to(0, x)), x);
}

}  // namespace
}  // namespace gradwire::rpc
