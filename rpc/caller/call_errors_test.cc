#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "gradwire/base/free_port.h"
#include "gradwire/codec/codec_test_util.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/interface/store.h"
#include "gradwire/store/tcp_store.h"

// A substitute for a module of libtorch, which this test does not link.
namespace torch::nn {
struct StandInImpl {};
}  // namespace torch::nn

// Every mistake of a user leads to one clear Error.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)
int64_t not_registered(int64_t a) { return a; }

struct Shy {
  int64_t poke() { return 1; }
};
RpcBackendOptions with_store() {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  options.join_timeout = absl::Seconds(30);
  return options;
}

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(absl::DataLossError("expected an Error, got none"));
}

// Makes a call like a program that was built from other sources.
absl::Status raw_call(Agent& agent, const std::string& to, const std::function<void(proto::Request&)>& fill) {
  OutgoingCall call(agent.caller(), to, "raw");
  fill(call.request());
  Promise<void> done;
  call.send([done](absl::StatusOr<IncomingPayload> in) { done.set_result(in.status()); });
  return done.future().result();
}

TEST(CallErrors, UnknownWorkerListsTheKnownOnes) {
  testing::Group group(2);
  const Error error = error_of([&] { group[0]->rpc_sync<&add>("worker7", 1, 1); });
  EXPECT_EQ(error.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("worker \"worker7\" not found"));
  EXPECT_THAT(error.what(), HasSubstr("\"worker1\" (1)"));
  EXPECT_EQ(error_of([&] { group[0]->rpc_sync<&add>(7, 1, 1); }).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(error_of([&] { group[0]->remote<&add>("worker7", 1, 1); }).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(error_of([&] { group[0]->get_worker_info("x"); }).status().code(), absl::StatusCode::kNotFound);
}

TEST(CallErrors, FunctionUnregisteredAtTheCallerSaysWhatToWrite) {
  testing::Group group(2);
  const Error error = error_of([&] { group[0]->rpc_sync<&not_registered>("worker1", 1); });
  EXPECT_THAT(error.what(), HasSubstr("not_registered"));
  EXPECT_THAT(error.what(), HasSubstr("GRADWIRE_RPC("));
  EXPECT_EQ(error.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(error_of([&] { group[0]->remote<Shy>("worker1"); }).status().code(), absl::StatusCode::kNotFound);
}

TEST(CallErrors, MethodUnregisteredAtTheCallerSaysWhatToWrite) {
  testing::Group group(1);
  const RRef<Shy> shy(*group[0], std::make_shared<Shy>());
  EXPECT_THAT(error_of([&] { shy.rpc_sync<&Shy::poke>(); }).what(), HasSubstr("GRADWIRE_RPC_METHOD("));
  EXPECT_THAT(error_of([&] { shy.rpc_sync<&Shy::poke>(); }).what(), HasSubstr("Shy, poke)"));
}

// As in stores: a timeout of zero does not wait, and only an infinite timeout means no limit.
TEST(CallErrors, TimeoutOfZeroFailsAtOnce) {
  testing::Group group(2);
  const Error error = error_of(
      [&] { group[0]->rpc_sync<&add>(Destination("worker1").with_timeout(absl::ZeroDuration()), 1, 1); });
  EXPECT_EQ(error.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), HasSubstr("timeout must be positive, got 0"));
  EXPECT_EQ(group[0]->rpc_sync<&add>(Destination("worker1").with_timeout(absl::InfiniteDuration()), 1, 1), 2);
}

TEST(CallErrors, UnregisteredModuleOfLibtorchNamesTheStockModules) {
  testing::Group group(2);
  const Error at_caller = error_of([&] { group[0]->remote<torch::nn::StandInImpl>("worker1"); });
  EXPECT_EQ(at_caller.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(at_caller.what(), HasSubstr("rpc/stock_modules.h"));
  const absl::Status at_callee = raw_call(*group[0], "worker1", [](proto::Request& request) {
    request.set_constructor("torch::nn::StandInImpl");
  });
  EXPECT_EQ(at_callee.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(at_callee.message()), HasSubstr("rpc/stock_modules.h"));
}

TEST(CallErrors, FunctionUnregisteredAtTheCalleeNamesTheWorker) {
  testing::Group group(2);
  const absl::Status status =
      raw_call(*group[0], "worker1", [](proto::Request& request) { request.set_function("other::add"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(worker_of(status), "worker1");
  EXPECT_THAT(std::string(status.message()), HasSubstr("alwayslink?"));
  group.expect_empty();
}

TEST(CallErrors, OtherSignatureShowsThatOfTheCallee) {
  testing::Group group(2);
  const absl::Status status = raw_call(*group[0], "worker1", [](proto::Request& request) {
    request.set_function(callee_of_function<&add>->name);
    request.set_signature(1);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("int64(int64,int64)"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker1"));
}

TEST(CallErrors, WrongArgumentsAreCounted) {
  testing::Group group(2);
  const absl::Status status = raw_call(*group[0], "worker1", [](proto::Request& request) {
    request.set_function(callee_of_function<&add>->name);
    request.set_signature(callee_of_function<&add>->signature_hash);
    request.mutable_arguments()->add_values()->set_integer(1);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes 2 arguments, got 1"));
}

TEST(CallErrors, DuplicateNameIsRefused) {
  try {
    testing::Group group({"same", "same"}, [] {
      RpcBackendOptions options = with_store();
      options.join_timeout = absl::Seconds(2);
      return options;
    }());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("names must be unique"), HasSubstr("did not join")));
  }
}

TEST(CallErrors, LateWorkersOfACompleteGroupAreRefused) {
  const RpcBackendOptions options = with_store();
  testing::Group group(2, options);
  const Error rank = error_of([&] { Agent::start("third", 1, 2, options); });
  EXPECT_EQ(rank.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(rank.what(), HasSubstr("rank 1 is taken by worker \"worker1\""));
  const Error size = error_of([&] { Agent::start("third", 2, 3, options); });
  EXPECT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(size.what(), HasSubstr("was started with 3, the job has 2"));
  EXPECT_EQ(group[0]->rpc_sync<&add>("worker1", 1, 1), 2);
}

TEST(CallErrors, TakenRankHasOneCodeWhateverTheInitMethod) {
  RpcBackendOptions by_file;
  by_file.init_method = absl::StrCat("file://", ::testing::TempDir(), "/taken_rank");
  RpcBackendOptions by_tcp;
  by_tcp.init_method = absl::StrCat("tcp://127.0.0.1:", free_port());
  for (RpcBackendOptions options : {with_store(), by_file, by_tcp}) {
    options.join_timeout = absl::Seconds(60);
    std::shared_ptr<Agent> second;
    std::thread joining([&] { second = Agent::start("second", 1, 2, options); });
    std::shared_ptr<Agent> first = Agent::start("first", 0, 2, options);
    joining.join();
    const Error taken = error_of([&] { Agent::start("third", 1, 2, options); });
    EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument) << taken.what();
    EXPECT_THAT(taken.what(), HasSubstr("rank 1"));
    std::thread ending([&] { second->shutdown(); });
    first->shutdown();
    ending.join();
  }
}

TEST(CallErrors, RankThatNeverComesIsNamed) {
  RpcBackendOptions options = with_store();
  options.join_timeout = absl::Milliseconds(100);
  const Error error = error_of([&] { Agent::start("first", 0, 2, options); });
  EXPECT_EQ(error.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2 did not join"));
}

TEST(CallErrors, TakenPortNamesIt) {
  store::TcpStore taken("127.0.0.1", 0, {.is_master = true});
  RpcBackendOptions options;
  options.init_method = absl::StrCat("tcp://127.0.0.1:", taken.port());
  options.join_timeout = absl::Seconds(5);
  const Error error = error_of([&] { Agent::start("first", 0, 2, options); });
  EXPECT_NE(error.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(error.what(), HasSubstr(absl::StrCat(taken.port())));
}

TEST(CallErrors, UnreachableStoreNamesIt) {
  const int port = free_port();
  RpcBackendOptions options;
  options.init_method = absl::StrCat("tcp://127.0.0.1:", port);
  options.join_timeout = absl::Milliseconds(500);
  const absl::Time start = absl::Now();
  const Error error = error_of([&] { Agent::start("second", 1, 2, options); });
  EXPECT_EQ(error.status().code(), absl::StatusCode::kUnavailable) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(absl::StrCat(port)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST(CallErrors, BadOptionsAreNamed) {
  RpcBackendOptions options = with_store();
  options.num_worker_threads = 0;
  EXPECT_EQ(error_of([&] { Agent::start("a", 0, 1, options); }).status().code(),
            absl::StatusCode::kInvalidArgument);
  options = with_store();
  options.rpc_timeout = absl::ZeroDuration();
  EXPECT_THAT(error_of([&] { Agent::start("a", 0, 1, options); }).what(),
              HasSubstr("rpc_timeout must be positive, got 0"));
  for (const double share : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    options = with_store();
    options.wait.share = share;
    EXPECT_THAT(error_of([&] { Agent::start("a", 0, 1, options); }).what(),
                HasSubstr("wait.share must be from 0 to 1, got "));
  }
  options = with_store();
  EXPECT_EQ(error_of([&] { Agent::start("", 0, 1, options); }).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { Agent::start("a", 0, -2, options); }).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CallErrors, BadWorkerNameIsRefusedBeforeAnythingIsSent) {
  for (const std::string& name :
       {std::string("a/b"), std::string("a\nb"), std::string("a b"), std::string(1 << 20, 'a')}) {
    RpcBackendOptions options = with_store();
    const Error error = error_of([&] { Agent::start(name, 0, 1, options); });
    EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("bad worker name: got \""));
    EXPECT_LT(error.status().message().size(), 300u);
    EXPECT_EQ(options.store->num_keys(), 0);
  }
}

// A type of the user whose Codec throws on request.
struct Thrower {
  int64_t when = 0;
};

}  // namespace

template <>
struct Codec<Thrower> {
  static std::string type_name() { return "Thrower"; }
  static absl::Status encode(const Thrower& value, Encoder&, proto::Value& out) {
    if (value.when == 1) throw std::runtime_error("encoding fails on purpose");
    out.set_integer(value.when == 2 ? -1 : value.when == 3 ? 1 : 0);
    return absl::OkStatus();
  }
  static absl::StatusOr<Thrower> decode(const proto::Value& in, Decoder&) {
    if (in.integer() < 0) throw std::runtime_error("decoding fails on purpose");
    return Thrower{in.integer()};
  }
};

namespace {

Thrower echo(const Thrower& value) { return value; }
GRADWIRE_RPC(echo)
Thrower make_thrower(int64_t when) { return {when}; }
GRADWIRE_RPC(make_thrower)

TEST(CallErrors, CodecThatThrowsFailsItsCallOnly) {
  testing::Group group(2);
  EXPECT_THROW(group[0]->rpc_sync<&echo>("worker1", Thrower{1}), std::runtime_error);
  for (const auto& action : std::vector<std::function<void()>>{
           [&] { group[0]->rpc_sync<&echo>("worker1", Thrower{2}); },    // Decoding at the callee.
           [&] { group[0]->rpc_sync<&echo>("worker1", Thrower{3}); },    // Encoding at the callee.
           [&] { group[0]->rpc_sync<&make_thrower>("worker1", 2); }}) {  // Decoding at the caller.
    const Error error = error_of(action);
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnknown);
    EXPECT_THAT(error.what(), HasSubstr("fails on purpose"));
  }
  group.expect_empty();
}

Promise<int64_t>& held_number() {
  static auto& promise = *new Promise<int64_t>();
  return promise;
}
Future<int64_t> wait_for_number() { return held_number().future(); }
GRADWIRE_RPC(wait_for_number)
Chain echo_chain(const Chain& chain) { return chain; }
GRADWIRE_RPC(echo_chain)
Chain make_chain(int64_t depth) { return Chain::of(depth); }
GRADWIRE_RPC(make_chain)

TEST(CallErrors, ValueNestedTooDeepFailsItsCallOnly) {
  testing::Group group(2);
  // The deepest value that can be sent arrives, although the messages around it are nested too.
  EXPECT_EQ(group[0]->rpc_sync<&echo_chain>("worker1", Chain::of(kMaxNesting)).rest.size(), 1u);
  const Future<int64_t> other = group[0]->rpc_async<&wait_for_number>("worker1");
  for (const auto& action :
       std::vector<std::function<void()>>{[&] { group[0]->rpc_sync<&echo_chain>("worker1", Chain::of(60)); },
                                          [&] { group[0]->rpc_sync<&make_chain>("worker1", 60); }}) {
    const Error error = error_of(action);
    EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("nested too deep"));
  }
  EXPECT_FALSE(other.done());
  held_number().set_value(5);
  EXPECT_EQ(other.result().value_or(-1), 5);
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
