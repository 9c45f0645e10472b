#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/testing/faults.h"
#include "gradwire/rpc/testing/group.h"

// How streams end early: cancellation, deadlines, death of either side, hostile takes. And how far a producer
// runs ahead.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

// Shows the work of the producers of one test. Handlers outlive tests, so the probes are never destroyed.
struct Probe {
  std::atomic<int64_t> produced{0};
  // Frames of coroutines, and threads of writers, that exist.
  std::atomic<int> living{0};
  std::atomic<int> cancelled_contexts{0};
  Promise<void> gate;
  Mutex mutex;
  // The reason with which the token of a coroutine has fired.
  absl::Status cancel_reason ABSL_GUARDED_BY(mutex);
  absl::Status write_ended ABSL_GUARDED_BY(mutex);
  std::thread writer ABSL_GUARDED_BY(mutex);

  void join() {
    std::thread thread;
    {
      MutexLock lock(mutex);
      thread = std::move(writer);
    }
    if (thread.joinable()) thread.join();
  }
  absl::Status ended() {
    MutexLock lock(mutex);
    return write_ended;
  }
  absl::Status reason() {
    MutexLock lock(mutex);
    return cancel_reason;
  }
};
Probe& probe(int64_t id) {
  static auto* probes = new std::array<Probe, 64>;
  return probes->at(static_cast<std::size_t>(id));
}
int64_t new_probe() {
  static std::atomic<int64_t> next{0};
  return next.fetch_add(1);
}

struct Alive {
  explicit Alive(Probe& p) : probe(p) { ++probe.living; }
  ~Alive() { --probe.living; }
  Probe& probe;
};

Stream<int64_t> endless(int64_t id) {
  Alive alive(probe(id));
  for (int64_t i = 0;; ++i) {
    ++probe(id).produced;
    co_yield i;
  }
}
GRADWIRE_RPC(endless)

Stream<std::string> endless_text(int64_t id, int64_t size) {
  Alive alive(probe(id));
  for (int64_t i = 0;; ++i) {
    ++probe(id).produced;
    co_yield std::string(static_cast<std::size_t>(size), 'x');
  }
}
GRADWIRE_RPC(endless_text)

// Yields `before` items, then waits for the gate.
Stream<int64_t> waits(int64_t id, int64_t before) {
  Alive alive(probe(id));
  const CancellationToken token = CallContext::current()->cancellation();
  token.on_cancelled([id, token] {
    {
      MutexLock lock(probe(id).mutex);
      probe(id).cancel_reason = token.reason();
    }
    ++probe(id).cancelled_contexts;
  });
  for (int64_t i = 0; i < before; ++i) co_yield i;
  co_await probe(id).gate.future();
  co_yield before;
}
GRADWIRE_RPC(waits)

// A thread writes until the reader is gone, or `n` items.
Stream<int64_t> writes(int64_t id, int64_t n) {
  auto [stream, writer] = make_stream<int64_t>();
  Probe& at = probe(id);
  MutexLock lock(at.mutex);
  at.writer = std::thread([&at, n, writer = writer] {
    Alive alive(at);
    const absl::Status status = status_of([&] {
      for (int64_t i = 0; i < n; ++i) {
        writer.write(i);
        ++at.produced;
      }
    });
    writer.finish(status);
    MutexLock lock(at.mutex);
    at.write_ended = status;
  });
  return std::move(stream);
}
GRADWIRE_RPC(writes)

int64_t nothing() { return 0; }
GRADWIRE_RPC(nothing)
// The test's transport closes the connection when it sends this call.
void cut() {}
GRADWIRE_RPC(cut)

struct Counter {
  int64_t value() { return 1; }
};
GRADWIRE_RPC_CLASS(Counter)
GRADWIRE_RPC_METHOD(Counter, value)

struct SerialModel {
  Stream<int64_t> generate() { co_yield 1; }
};
GRADWIRE_RPC_SERIAL_CLASS(SerialModel)
GRADWIRE_RPC_METHOD(SerialModel, generate)

// Methods that make the streams above.
struct Machine {
  Stream<int64_t> run(int64_t id) { return endless(id); }
  Stream<int64_t> wait(int64_t id) { return waits(id, 0); }
};
GRADWIRE_RPC_CLASS(Machine)
GRADWIRE_RPC_METHOD(Machine, run)
GRADWIRE_RPC_METHOD(Machine, wait)

void expect_no_producer(int64_t id) {
  EXPECT_TRUE(eventually([&] { return probe(id).living == 0; }, absl::Seconds(30)));
}

// Gives the other worker the occasion to do what it should not do.
void work_meanwhile(const std::shared_ptr<Agent>& agent, const std::string& to) {
  for (int i = 0; i < 200; ++i) agent->rpc_sync<&nothing>(to);
}

TEST(StreamFlow, ProducerStopsAtTheWindow) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    RemoteStream<int64_t> stream =
        group[0]->rpc_stream<&endless>(StreamDestination("worker1", {.window_items = 4}), id);
    EXPECT_TRUE(eventually([&] { return probe(id).produced == 4; }));
    work_meanwhile(group[0], "worker1");
    EXPECT_EQ(probe(id).produced, 4);
    for (int64_t i = 0; i < 1'000; ++i) {
      ASSERT_EQ(stream.next(), i);
      // The window, the items that were read, and the one that the coroutine makes.
      ASSERT_LE(probe(id).produced, i + 1 + 4 + 1);
    }
  }
  expect_no_producer(id);
  group.expect_empty();
}

TEST(StreamFlow, MethodStopsAtTheWindow) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    const RRef<Machine> machine = group[0]->remote<Machine>("worker1");
    RemoteStream<int64_t> stream = rpc_stream<&Machine::run>(StreamObject(machine, {.window_items = 4}), id);
    for (int64_t i = 0; i < 100; ++i) {
      ASSERT_EQ(stream.next(), i);
      ASSERT_LE(probe(id).produced, i + 1 + 4 + 1);
    }
  }
  expect_no_producer(id);
  group.expect_empty();
}

TEST(StreamFlow, BytesAreBounded) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    RemoteStream<std::string> stream = group[0]->rpc_stream<&endless_text>(
        StreamDestination("worker1", {.window_bytes = 1 << 20}), id, int64_t{100} << 10);
    for (int64_t i = 0; i < 200; ++i) {
      ASSERT_TRUE(stream.next().has_value());
      // Each of the four takes may exceed its part of the window by one item.
      ASSERT_LE(probe(id).produced, i + 1 + 10 + 4 + 1);
    }
    work_meanwhile(group[0], "worker1");
    EXPECT_LE(probe(id).produced, 200 + 10 + 4 + 1);
  }
  expect_no_producer(id);
}

TEST(StreamFlow, WriterWaitsAtTheWindow) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    RemoteStream<int64_t> stream =
        group[0]->rpc_stream<&writes>(StreamDestination("worker1", {.window_items = 16}), id, 2'000);
    // A reader that does not read has its window filled, except for less than one take, which is a quarter.
    EXPECT_TRUE(eventually([&] { return probe(id).produced >= 13; }));
    work_meanwhile(group[0], "worker1");
    EXPECT_LE(probe(id).produced, 16);
    for (int64_t i = 0; i < 2'000; ++i) ASSERT_EQ(stream.next(), i);
    EXPECT_EQ(stream.next(), std::nullopt);
  }
  probe(id).join();
  EXPECT_EQ(probe(id).ended(), absl::OkStatus());
  group.expect_empty();
}

TEST(StreamCancel, CancelDestroysTheCoroutine) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    RemoteStream<int64_t> stream = group[0]->rpc_stream<&endless>("worker1", id);
    EXPECT_EQ(stream.next(), 0);
    stream.cancel();
    EXPECT_EQ(status_of([&] {
                while (stream.next()) continue;
              }).code(),
              absl::StatusCode::kCancelled);
    expect_no_producer(id);
  }
  group.expect_empty();
}

TEST(StreamCancel, DestructionCancels) {
  testing::Group group(2);
  const int64_t id = new_probe();
  { RemoteStream<int64_t> stream = group[0]->rpc_stream<&endless>("worker1", id); }
  {
    RemoteStream<int64_t> stream = group[0]->rpc_stream<&endless>("worker1", id);
    EXPECT_EQ(stream.next(), 0);
  }
  expect_no_producer(id);
  group.expect_empty();
}

TEST(StreamCancel, CoroutineThatAwaitsIsDestroyedAtOnce) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 1);
    EXPECT_EQ(stream.next(), 0);
    EXPECT_TRUE(eventually([&] { return probe(id).living == 1; }));
  }
  expect_no_producer(id);
  EXPECT_EQ(probe(id).cancelled_contexts, 1);
  EXPECT_EQ(probe(id).reason().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(probe(id).reason().message()), HasSubstr("the reader of the stream is gone"));
  // The future that it awaited completes later.
  probe(id).gate.set_value();
  group.expect_empty();
}

TEST(StreamCancel, WaitingWriterWakesWithCancelled) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    RemoteStream<int64_t> stream =
        group[0]->rpc_stream<&writes>(StreamDestination("worker1", {.window_items = 4}), id, 1'000'000);
    EXPECT_EQ(stream.next(), 0);
  }
  expect_no_producer(id);
  probe(id).join();
  EXPECT_EQ(probe(id).ended().code(), absl::StatusCode::kCancelled);
  group.expect_empty();
}

TEST(StreamCancel, CancelWakesAReaderThatWaits) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 0);
  Future<std::optional<int64_t>> item = stream.next_async();
  EXPECT_EQ(stream.next_async().result().status().code(), absl::StatusCode::kFailedPrecondition);
  stream.cancel();
  EXPECT_EQ(item.result().status().code(), absl::StatusCode::kCancelled);
  expect_no_producer(id);
}

TEST(StreamCancel, CancelledWaitCancelsTheStream) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 0);
  stream.next_async().cancel();
  EXPECT_EQ(status_of([&] { stream.next(); }).code(), absl::StatusCode::kCancelled);
  expect_no_producer(id);
}

TEST(StreamDeadline, TimeoutBoundsTheWaitForAnItem) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream =
      group[0]->rpc_stream<&waits>(Destination("worker1").with_timeout(absl::Milliseconds(500)), id, 3);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(stream.next(), i);
  const absl::Status status = status_of([&] { stream.next(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no item arrived"));
  EXPECT_EQ(worker_of(status), "worker1");
  expect_no_producer(id);
  group.expect_empty();
}

TEST(StreamDeadline, TotalTimeoutBoundsTheStream) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>(
      StreamDestination("worker1", {.total_timeout = absl::Milliseconds(500)}), id, 0);
  const absl::Status status = status_of([&] { stream.next(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("total timeout"));
  expect_no_producer(id);
}

// Its items have arrived, so it need not wait.
TEST(StreamDeadline, TotalTimeoutEndsAStreamForWhichNobodyWaits) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&endless>(
      StreamDestination("worker1", {.window_items = 4, .total_timeout = absl::Seconds(4)}), id);
  EXPECT_TRUE(eventually([&] { return probe(id).produced > 0; }));
  expect_no_producer(id);
  const absl::Status status = status_of([&] { stream.next(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("total timeout"));
}

TEST(StreamDeadline, TimeoutOfAReferenceBoundsTheWaitForAnItem) {
  RpcBackendOptions options;
  options.rpc_timeout = absl::Seconds(20);
  testing::Group group(2, options);
  const int64_t id = new_probe();
  {
    const RRef<Machine> machine = group[0]->remote<Machine>("worker1");
    RemoteStream<int64_t> stream =
        rpc_stream<&Machine::wait>(machine.with_timeout(absl::Milliseconds(500)), id);
    const absl::Time begun = absl::Now();
    const absl::Status status = status_of([&] { stream.next(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Machine::wait"));
    EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
    expect_no_producer(id);
  }
  group.expect_empty();
}

TEST(StreamDeadline, TotalTimeoutBoundsTheStreamOfAMethod) {
  testing::Group group(2);
  const int64_t id = new_probe();
  const RRef<Machine> machine = group[0]->remote<Machine>("worker1");
  RemoteStream<int64_t> stream =
      rpc_stream<&Machine::wait>(StreamObject(machine, {.total_timeout = absl::Milliseconds(500)}), id);
  const absl::Status status = status_of([&] { stream.next(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("total timeout"));
  expect_no_producer(id);
}

TEST(StreamDeath, ReaderThatDiesCancelsAWaitingProducer) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 1);
  EXPECT_EQ(stream.next(), 0);
  group.kill(0);
  expect_no_producer(id);
  EXPECT_FALSE(status_of([&] { stream.next(); }).ok());
}

// No take is in flight when the window is full, so the references of the dead worker end the stream.
TEST(StreamDeath, ReaderThatDiesCancelsAProducerWithoutRoom) {
  testing::Group group(2);
  const int64_t id = new_probe();
  const int64_t writer = new_probe();
  RemoteStream<int64_t> stream =
      group[0]->rpc_stream<&endless>(StreamDestination("worker1", {.window_items = 4}), id);
  RemoteStream<int64_t> written =
      group[0]->rpc_stream<&writes>(StreamDestination("worker1", {.window_items = 4}), writer, 1'000'000);
  EXPECT_TRUE(eventually([&] { return probe(id).produced == 4 && probe(writer).produced == 4; }));
  group.kill(0);
  expect_no_producer(id);
  expect_no_producer(writer);
  probe(writer).join();
  EXPECT_EQ(probe(writer).ended().code(), absl::StatusCode::kCancelled);
}

TEST(StreamDeath, ProducerThatDiesEndsTheStreamAfterItsItems) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 5);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(stream.next(), i);
  Future<std::optional<int64_t>> item = stream.next_async();
  group.kill(1);
  const absl::Status status = item.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(status_of([&] { stream.next(); }).code(), status.code());
  expect_no_producer(id);
}

// The reader is there: it must not be blamed for the end.
TEST(StreamDeath, ProducerThatShutsDownIsNamedByTheReader) {
  RpcBackendOptions options;
  options.num_worker_threads = 1;
  testing::Group group(2, options);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 1);
  EXPECT_EQ(stream.next(), 0);
  Future<std::optional<int64_t>> item = stream.next_async();
  // The calls come behind the takes, and one thread runs both, so the takes wait when the shutdown begins.
  work_meanwhile(group[0], "worker1");
  group.kill(1);
  ASSERT_TRUE(eventually([&] { return probe(id).cancelled_contexts == 1; }));
  EXPECT_EQ(probe(id).reason(), absl::UnavailableError("worker \"worker1\" has shut down"));
  const absl::Status status = item.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker \"worker1\""));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("reader")));
  expect_no_producer(id);
}

TEST(StreamDeath, OwnShutdownEndsTheStream) {
  testing::Group group(1);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker0", id, 1);
  EXPECT_EQ(stream.next(), 0);
  group.kill(0);
  EXPECT_FALSE(status_of([&] { stream.next(); }).ok());
  expect_no_producer(id);
}

TEST(StreamDeath, GracefulShutdownThatTimesOutNamesTheFunctionOfTheStreamOnce) {
  for (const std::size_t rank : {0, 1}) {
    testing::Group group(2);
    const int64_t id = new_probe();
    RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 1);
    EXPECT_EQ(stream.next(), 0);
    Future<std::optional<int64_t>> item = stream.next_async();
    ASSERT_TRUE(eventually([&] { return group[1]->tables().served_calls > 1; }));
    const absl::Status status =
        status_of([&] { group[rank]->shutdown(/*graceful=*/true, absl::Milliseconds(200)); });
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(
        std::string(status.message()),
        ::testing::ContainsRegex(rank == 0 ? "the stream of \"[^\"]*waits\" on worker \"worker1\" \\(.*times"
                                           : "the stream of \"[^\"]*waits\", which worker \"worker0\" "
                                             "reads \\(.*times"));
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(status.message(), "the stream of")).size(), 2u)
        << status;
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr(".take")));
    group.kill(1 - rank);
    expect_no_producer(id);
  }
}

// docs/streams.md: the shutdown waits for the stream, as for any call.
TEST(StreamDeath, GracefulShutdownWaitsForAnOpenStream) {
  testing::Group group(2);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 1);
  EXPECT_EQ(stream.next(), 0);
  std::atomic<int> left{0};
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&group, &left, rank] {
      group[rank]->shutdown(/*graceful=*/true, absl::Seconds(60));
      ++left;
    });
  }
  // The rest of the stream arrives although both agents are shutting down.
  probe(id).gate.set_value();
  EXPECT_EQ(stream.next(), 1);
  EXPECT_EQ(stream.next(), std::nullopt);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(left, 2);
  expect_no_producer(id);
}

// The function is not repeated: a part of its items may have been read.
TEST(StreamDeath, BrokenConnectionEndsTheStreamAndItsProducer) {
  RpcBackendOptions options;
  options.hooks = testing::outgoing_faults([](const proto::Envelope& envelope) {
    return absl::EndsWith(envelope.request().function(), "cut") ? transport::Fault::Kind::kCut
                                                                : transport::Fault::Kind::kDeliver;
  });
  testing::Group group(2, options);
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream = group[0]->rpc_stream<&waits>("worker1", id, 1);
  EXPECT_EQ(stream.next(), 0);
  Future<std::optional<int64_t>> item = stream.next_async();
  EXPECT_EQ(group[0]->rpc_async<&cut>("worker1").result().code(), absl::StatusCode::kUnavailable);
  const absl::Status status = item.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(worker_of(status), "worker1");
  expect_no_producer(id);
  // Both workers are alive: the next stream works.
  RemoteStream<int64_t> next = group[0]->rpc_stream<&endless>("worker1", new_probe());
  EXPECT_EQ(next.next(), 0);
}

TEST(StreamDeath, StreamMayOutliveItsAgent) {
  const int64_t id = new_probe();
  RemoteStream<int64_t> stream;
  {
    testing::Group group(2);
    stream = group[0]->rpc_stream<&endless>("worker1", id);
    EXPECT_EQ(stream.next(), 0);
    group.kill(0);
    group.kill(1);
  }
  EXPECT_FALSE(status_of([&] {
                 while (stream.next()) continue;
               }).ok());
  expect_no_producer(id);
}

// ---- Takes as no reader sends them.

// A stream without its reader.
template <auto F, class... A>
std::shared_ptr<RRefHandle> open(const std::shared_ptr<Agent>& agent, const Destination& to, A... arguments) {
  call_internal::FunctionCall<F> call(agent->caller(), to, arguments...);
  return call_internal::send_remote(agent, call, "Stream[int64]", nullptr);
}

// Sends a take and waits for its end.
absl::Status take(const std::shared_ptr<Agent>& agent, const RRefHandle& target, uint64_t sequence,
                  uint64_t items, uint64_t bytes, std::size_t* got = nullptr) {
  const Callee* method = Registry::instance().find(CalleeKind::kMethod, "Stream[int64].take");
  OutgoingCall call(agent->caller(), Destination::incarnation_of(target.owner()), method->name);
  call.request().set_method(method->name);
  call.request().set_signature(method->signature_hash);
  to_proto(target.rref(), *call.request().mutable_target());
  call.add_argument<uint64_t>(sequence);
  call.add_argument<uint64_t>(items);
  call.add_argument<uint64_t>(bytes);
  Promise<std::size_t> done;
  call.send([done](absl::StatusOr<IncomingPayload> in) {
    if (!in.ok()) {
      done.set_error(in.status());
      return;
    }
    done.set_value(
        static_cast<std::size_t>(in->payload->values(0).list().values(0).integers().values_size()));
  });
  const absl::StatusOr<std::size_t> result = done.future().result();
  if (got != nullptr && result.ok()) *got = *result;
  return result.status();
}

TEST(StreamHostile, AbsurdLimitsAreBounded) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    const std::shared_ptr<RRefHandle> stream = open<&endless>(group[0], "worker1", id);
    std::size_t items = 0;
    EXPECT_EQ(take(group[0], *stream, 0, UINT64_MAX, UINT64_MAX, &items), absl::OkStatus());
    EXPECT_LE(items, StreamBuffer::kMostItems);
    EXPECT_LE(probe(id).produced, static_cast<int64_t>(StreamBuffer::kMostItems) + 1);
    EXPECT_EQ(take(group[0], *stream, 1, 0, 1).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(take(group[0], *stream, UINT64_MAX, 1, 1).code(), absl::StatusCode::kInvalidArgument);
    // The stream still works.
    EXPECT_EQ(take(group[0], *stream, 1, 1, 1, &items), absl::OkStatus());
    EXPECT_EQ(items, 1u);
  }
  expect_no_producer(id);
  group.expect_empty();
}

TEST(StreamHostile, SecondReaderIsRefused) {
  testing::Group group(3);
  const int64_t id = new_probe();
  {
    const std::shared_ptr<RRefHandle> stream = open<&endless>(group[0], "worker1", id);
    EXPECT_EQ(take(group[0], *stream, 0, 1, 1), absl::OkStatus());
    EXPECT_EQ(take(group[0], *stream, 0, 1, 1).code(), absl::StatusCode::kInvalidArgument);
    // Worker 2 has guessed the id.
    const absl::Status other = take(group[2], *stream, 1, 1, 1);
    EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(other.message()), HasSubstr("has another reader"));
    EXPECT_EQ(take(group[0], *stream, 1, 1, 1), absl::OkStatus());
  }
  expect_no_producer(id);
  group.expect_empty();
}

TEST(StreamHostile, TakeOnAnotherObjectIsRefused) {
  testing::Group group(2);
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1");
    EXPECT_EQ(take(group[0], *counter.handle(), 0, 1, 1).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(counter.rpc_sync<&Counter::value>(), 1);
  }
  group.expect_empty();
}

TEST(StreamHostile, StreamIsNotAValue) {
  testing::Group group(2);
  const int64_t id = new_probe();
  {
    const std::shared_ptr<RRefHandle> stream = open<&endless>(group[0], "worker1", id);
    OutgoingCall call(group[0]->caller(), "worker1", "to_here");
    call.request().set_fetch(true);
    to_proto(stream->rref(), *call.request().mutable_target());
    Promise<int64_t> done;
    call.send([done](const absl::StatusOr<IncomingPayload>& in) {
      if (in.ok()) {
        done.set_value(0);
      } else {
        done.set_error(in.status());
      }
    });
    EXPECT_EQ(done.future().result().status().code(), absl::StatusCode::kInvalidArgument);
  }
  expect_no_producer(id);
}

TEST(StreamHostile, MethodOfASerialClassIsRefused) {
  testing::Group group(2);
  {
    RRef<SerialModel> model = group[0]->remote<SerialModel>("worker1");
    RemoteStream<int64_t> stream = rpc_stream<&SerialModel::generate>(model);
    const absl::Status status = status_of([&] { stream.next(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("serial class"));
  }
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
