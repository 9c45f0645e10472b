// Tests of an EtcdStore whose etcd is restarted, killed or silent, or is another program.

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/etcd/etcd_process.h"
#include "gradwire/store/etcd_store.h"
#include "gradwire/store/tcp/cutting_proxy.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class EtcdFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEED_ETCD();
    etcd_ = std::make_unique<EtcdProcess>();
  }
  std::shared_ptr<EtcdStore> connect() {
    return std::make_shared<EtcdStore>(std::vector<std::string>{etcd_->endpoint()}, "job",
                                       EtcdStoreOptions{.timeout = kTimeout});
  }

  std::unique_ptr<EtcdProcess> etcd_;
};

TEST_F(EtcdFaults, WaitsAndWatchesGoOnAfterARestart) {
  const auto store = connect(), other = connect();
  store->set("watched", "one");
  std::string got, seen;
  absl::Status waited = absl::UnknownError("not run");
  std::thread getter([&] { got = store->get("late"); });
  std::thread watcher([&] { seen = store->watch("watched", "one"); });
  std::thread waiter([&] { waited = store->try_wait({"late", "later"}); });
  for (int i = 0; i < 3; ++i) {
    etcd_->kill();
    etcd_->start();
    other->set("between", absl::StrCat(i));
  }
  other->set("late", "here");
  other->set("watched", "two");
  other->set("later", "");
  getter.join();
  watcher.join();
  waiter.join();
  EXPECT_EQ(got, "here");
  EXPECT_EQ(seen, "two");
  EXPECT_TRUE(waited.ok()) << waited;
}

TEST_F(EtcdFaults, WatchGoesOnAfterACompactionAndARestart) {
  const auto store = connect(), other = connect();
  store->set("key", "one");
  std::string seen;
  std::thread watcher([&] { seen = store->watch("key", "one"); });
  etcd_->terminate();
  etcd_->start();
  // The watcher asks for a revision that etcd has compacted, or is already connected.
  for (int i = 0; i < 20; ++i) other->set("noise", absl::StrCat(i));
  etcd_->compact();
  other->set("key", "two");
  watcher.join();
  EXPECT_EQ(seen, "two");
}

TEST_F(EtcdFaults, WatchGoesOnWhenEtcdHasLostItsData) {
  const auto store = connect(), other = connect();
  for (int i = 0; i < 20; ++i) store->set("noise", absl::StrCat(i));
  std::string seen;
  std::thread watcher([&] { seen = store->get("key"); });
  etcd_->kill();
  etcd_->delete_data();
  etcd_->start();
  other->set("key", "new");
  watcher.join();
  EXPECT_EQ(seen, "new");
}

TEST_F(EtcdFaults, AddsAndCompareSetsOverRestartsHappenOnce) {
  constexpr int kThreads = 4, kAdds = 60;
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, store = connect()] {
      for (int i = 0; i < kAdds; ++i) {
        EXPECT_TRUE(store->try_add("counter", 1).ok());
        // Each compare_set must happen once: a repeated one would find another value and fail.
        const std::string chain = absl::StrCat("chain", t);
        EXPECT_EQ(store->compare_set(chain, i == 0 ? "" : absl::StrCat(i - 1), absl::StrCat(i)),
                  absl::StrCat(i));
        ++done;
      }
    });
  }
  for (int kills = 1; kills <= 4; ++kills) {
    while (done < kills * kThreads * kAdds / 6) std::this_thread::yield();
    etcd_->kill();
    etcd_->start();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(connect()->add("counter", 0), kThreads * kAdds);
}

class EtcdCut : public EtcdFaults {
 protected:
  void SetUp() override {
    EtcdFaults::SetUp();
    if (etcd_ == nullptr) return;
    proxy_ = std::make_unique<CuttingProxy>(etcd_->port());
    direct_ = connect();
    store_ = std::make_shared<EtcdStore>(std::vector<std::string>{absl::StrCat("127.0.0.1:", proxy_->port())},
                                         "job", EtcdStoreOptions{.timeout = kTimeout});
  }

  std::unique_ptr<CuttingProxy> proxy_;
  std::shared_ptr<EtcdStore> direct_, store_;
};

TEST_F(EtcdCut, SetWhoseAnswerIsLostIsNotMadeTwice) {
  store_->set("key", "first");
  proxy_->lose_answers();
  absl::Status status = absl::UnknownError("not run");
  std::thread caller([&] { status = store_->try_set("key", "mine"); });
  EXPECT_EQ(direct_->watch("key", "first"), "mine");
  direct_->set("key", "another's");
  proxy_->cut();
  caller.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(direct_->get("key"), "another's");
}

// A change is a read followed by a transaction. The proxy holds the answers to both. So if a change becomes
// visible, its answer is lost with the connection.
TEST_F(EtcdCut, AddsAndCompareSetsWhoseAnswersAreLostHappenOnce) {
  constexpr int kLost = 2;
  direct_->set("counter", "0");
  direct_->set("chain", "0");
  std::atomic<int> adds_lost{0}, links_lost{0};
  const absl::Time deadline = absl::Now() + kTimeout;
  const auto enough = [&] { return (adds_lost >= kLost && links_lost >= kLost) || absl::Now() >= deadline; };
  std::thread cutter([&] {
    while (!enough()) {
      proxy_->hold_answers();
      const std::string counter = direct_->get("counter");
      const std::string chain = direct_->get("chain");
      direct_->try_wait({"never"}, absl::Milliseconds(10)).IgnoreError();
      const bool added = direct_->get("counter") != counter;
      const bool linked = direct_->get("chain") != chain;
      if (!added && !linked) continue;
      proxy_->cut();
      adds_lost += added;
      links_lost += linked;
    }
    proxy_->cut();
  });
  int adds = 0;
  while (adds < 20 || !enough()) {
    EXPECT_EQ(store_->add("counter", 1), ++adds);
    // A compare_set that was executed twice would find another value and fail.
    EXPECT_EQ(store_->compare_set("chain", absl::StrCat(adds - 1), absl::StrCat(adds)), absl::StrCat(adds));
  }
  cutter.join();
  EXPECT_GE(adds_lost, kLost);
  EXPECT_GE(links_lost, kLost);
  EXPECT_EQ(direct_->get("counter"), absl::StrCat(adds));
}

TEST_F(EtcdFaults, EtcdThatIsGoneForGoodIsUnavailableAndNamed) {
  const auto store = connect();
  store->set("key", "value");
  etcd_->kill();
  const std::string endpoint = absl::StrCat("localhost:", etcd_->port());
  const absl::Time start = absl::Now();
  for (const absl::Status& status :
       {store->try_set("key", "other", absl::Milliseconds(1500)),
        store->try_get("key", absl::Milliseconds(200)).status(),
        store->try_add("counter", 1, absl::ZeroDuration()).status(),
        store->try_wait({"never"}, absl::Milliseconds(200)),
        EtcdStore::open({etcd_->endpoint()}, "job", {.timeout = absl::Milliseconds(200)}).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(endpoint));
    EXPECT_THAT(std::string(status.message()), HasSubstr("EtcdStore"));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST_F(EtcdFaults, WaitEndsAtItsDeadlineWhenEtcdGoes) {
  const auto store = connect();
  absl::Status status;
  std::thread waiter([&] { status = store->try_wait({"never"}, absl::Seconds(2)); });
  etcd_->kill();
  waiter.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(EtcdFaults, CallToAHangingEtcdEndsAtTheDeadline) {
  const auto store = connect();
  store->set("key", "value");
  etcd_->stop();
  const absl::Status status = store->try_set("key", "late", absl::Milliseconds(1100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("localhost:", etcd_->port())));
  etcd_->resume();
  // The change that timed out must not disturb later changes.
  EXPECT_EQ(store->add("counter", 1), 1);
  EXPECT_EQ(store->add("counter", 1), 2);
}

TEST_F(EtcdFaults, NextEndpointIsTriedWhenOneIsUnavailable) {
  const std::string nobody = absl::StrCat("127.0.0.1:", free_port());
  EtcdStore store({nobody, etcd_->endpoint()}, "job", {.timeout = kTimeout});
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value");
  EXPECT_EQ(connect()->get("key"), "value");
}

TEST_F(EtcdFaults, StoreMayComeBeforeEtcd) {
  etcd_->kill();
  absl::StatusOr<std::string> got = absl::UnknownError("not run");
  {
    const std::jthread early([&] {
      const auto store = EtcdStore::open({etcd_->endpoint()}, "job", {.timeout = kTimeout});
      got = store.ok() ? (*store)->try_get("key") : store.status();
    });
    etcd_->start();
    connect()->set("key", "value");
  }
  EXPECT_EQ(got.status(), absl::OkStatus());
  EXPECT_EQ(got.value_or(""), "value");
}

// A server that sends fixed bytes to every client.
class GarbageServer {
 public:
  explicit GarbageServer(std::string bytes) : bytes_(std::move(bytes)) {
    listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      while (true) {
        const Descriptor peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!peer.valid()) return;
        ::send(peer.get(), bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
        // Read until the client closes the connection or is silent for a second.
        char buffer[4096];
        timeval timeout = {1, 0};
        ::setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
        while (::recv(peer.get(), buffer, sizeof(buffer), 0) > 0) {
        }
      }
    });
  }
  ~GarbageServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }

 private:
  const std::string bytes_;
  Descriptor listener_;
  int port_;
  std::thread thread_;
};

TEST(EtcdGarbage, AnotherProgramIsAnErrorThatNamesTheEndpoint) {
  std::string noise(100'000, '\0');
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * 2654435761u >> 13);
  // A settings frame of HTTP/2, then noise.
  const std::string half("\0\0\0\4\0\0\0\0\0", 9);
  for (const std::string& bytes : {std::string("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
                                   noise, half + noise, std::string("SSH-2.0-OpenSSH_9.2\r\n")}) {
    GarbageServer server(bytes);
    const std::string endpoint = absl::StrCat("127.0.0.1:", server.port());
    const absl::Status status = EtcdStore::open({endpoint}, "job", {.timeout = absl::Seconds(1)}).status();
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(endpoint));
  }
}

// Whether gRPC still connects when the time ends, or waits before it tries again, depends on the moment. The
// user's error must not.
TEST(EtcdGarbage, AServerThatNeverSpeaksIsUnavailable) {
  GarbageServer server("");
  const std::string endpoint = absl::StrCat("127.0.0.1:", server.port());
  const absl::Status status =
      EtcdStore::open({endpoint}, "job", {.timeout = absl::Milliseconds(200)}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(endpoint));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no connection could be made in time"));
}

// A gRPC server with one service, on a free port of this host.
class GrpcServer {
 public:
  explicit GrpcServer(grpc::Service& service) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
  }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The server is a gRPC server, but not an etcd.
TEST(EtcdGarbage, AnotherGrpcServerIsNotMistakenForEtcd) {
  etcdserverpb::Auth::Service service;
  const GrpcServer server(service);
  const absl::Status status = EtcdStore::open({server.endpoint()}, "job", {.timeout = kTimeout}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

// A server of etcd's API whose answers are all wrong.
class Liar : public etcdserverpb::KV::Service {
 public:
  std::atomic<int> mode{0};

 private:
  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    if (request->count_only()) response->set_count(mode == 1 ? -5 : 1);
    if (request->count_only() || mode == 0) return grpc::Status::OK;
    for (int i = 0; i < mode; ++i) {
      auto* kv = response->add_kvs();
      kv->set_key(mode == 2 ? request->key() : "another");
      kv->set_mod_revision(mode == 3 ? -1 : 5);
    }
    return grpc::Status::OK;
  }
  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest*,
                   etcdserverpb::TxnResponse* response) override {
    response->set_succeeded(mode == 0);
    return grpc::Status::OK;
  }
};

TEST(EtcdGarbage, ImpossibleAnswersAreErrors) {
  Liar liar;
  const GrpcServer server(liar);
  EtcdStore store({server.endpoint()}, "job", {.timeout = kTimeout});
  for (liar.mode = 0; liar.mode < 4; ++liar.mode) {
    EXPECT_TRUE(absl::IsFailedPrecondition(store.try_set("key", "value"))) << liar.mode;
    EXPECT_TRUE(absl::IsFailedPrecondition(store.try_add("key", 1).status())) << liar.mode;
    EXPECT_TRUE(absl::IsFailedPrecondition(store.try_wait({"a", "b"}))) << liar.mode;
    if (liar.mode == 0) continue;
    EXPECT_TRUE(absl::IsFailedPrecondition(store.try_get("key").status())) << liar.mode;
  }
  liar.mode = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(store.try_num_keys().status()));
}

// One key, which another process has just changed, and an etcd that loses the answers of two transactions: of
// the first one, which it did not execute, and of the next one whose conditions hold, which it did execute.
class LosesTwoAnswers : public etcdserverpb::KV::Service {
 public:
  std::atomic<int> executed{0};

 private:
  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    response->mutable_header()->set_revision(kSlotRevision);
    // The key is missing until the other process has set it.
    if (!lost_first_) return grpc::Status::OK;
    add_key(request->key(), *response);
    return grpc::Status::OK;
  }
  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override {
    if (!lost_first_.exchange(true)) return {grpc::StatusCode::UNAVAILABLE, "lost before its execution"};
    // Conditions and reads are about the slot and the key, in this order.
    response->mutable_header()->set_revision(kSlotRevision);
    const bool holds = request->compare(0).mod_revision() == (slot_written_ ? kSlotRevision : 0) &&
                       request->compare(1).mod_revision() == kKeyRevision;
    if (holds) {
      slot_written_ = true;
      slot_value_ = request->success(0).request_put().value();
      ++executed;
      return {grpc::StatusCode::UNAVAILABLE, "lost after its execution"};
    }
    auto& slot = *response->add_responses()->mutable_response_range();
    if (slot_written_) {
      auto& kv = *slot.add_kvs();
      kv.set_key(request->failure(0).request_range().key());
      kv.set_value(slot_value_);
      kv.set_mod_revision(kSlotRevision);
    }
    add_key(request->failure(1).request_range().key(), *response->add_responses()->mutable_response_range());
    return grpc::Status::OK;
  }

  static constexpr int64_t kKeyRevision = 5;
  static constexpr int64_t kSlotRevision = 7;
  static void add_key(const std::string& key, etcdserverpb::RangeResponse& response) {
    auto& kv = *response.add_kvs();
    kv.set_key(key);
    kv.set_value("theirs");
    kv.set_mod_revision(kKeyRevision);
  }

  std::atomic<bool> lost_first_{false};
  bool slot_written_ = false;
  std::string slot_value_;
};

// The transaction that only closes the slot, because there is nothing to change, must not count as a change.
TEST(EtcdLostAnswers, CompareSetThatChangedNothingReturnsTheValueOfTheOther) {
  LosesTwoAnswers service;
  const GrpcServer server(service);
  EtcdStore store({server.endpoint()}, "job", {.timeout = kTimeout});
  const absl::StatusOr<std::string> value = store.try_compare_set("key", "", "ours");
  ASSERT_EQ(value.status(), absl::OkStatus());
  EXPECT_EQ(*value, "theirs");
  EXPECT_EQ(service.executed, 1);
}

TEST(EtcdEndpoints, ImpossibleOnesAreRefused) {
  for (const std::vector<std::string>& endpoints :
       std::vector<std::vector<std::string>>{{},
                                             {"localhost"},
                                             {"localhost:0"},
                                             {"localhost:2379", "ftp://localhost:2379"},
                                             {"localhost:99999"},
                                             {""}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(EtcdStore::open(endpoints, "job").status()));
  }
  EXPECT_THROW(EtcdStore({"localhost"}, "job"), Error);
  const auto refused = [](EtcdStoreOptions options) {
    return absl::IsInvalidArgument(EtcdStore::open({"http://localhost:2379"}, "job", options).status());
  };
  EXPECT_TRUE(refused({.lease_ttl = -absl::Seconds(1)}));
  EXPECT_TRUE(refused({.lease_ttl = absl::InfiniteDuration()}));
  EXPECT_TRUE(refused({.security = {.tls = true}}));
  EXPECT_TRUE(refused({.security = {.password = "secret"}}));
  EXPECT_TRUE(refused({.security = {.authority_file = "/there/is/none.pem"}}));
  EXPECT_TRUE(refused({.security = {.key_file = "/dev/null"}}));
}

}  // namespace
}  // namespace gradwire::store
