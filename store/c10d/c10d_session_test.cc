#include "gradwire/store/c10d/c10d_session.h"

#include <limits>
#include <memory>

#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/tcp/tcp_store_service.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();

// A server with several clients of PyTorch's protocol, without sockets.
class C10dSessionTest : public ::testing::Test {
 protected:
  class Client : public C10dSession::Server {
   public:
    Client(C10dSessionTest& test, uint64_t number) : test_(test), number_(number), session_(number + 1) {}
    // The answer to these bytes.
    std::string operator()(const std::string& bytes) {
      status_ = session_.receive(bytes, *this);
      return session_.take_output();
    }
    std::string output() { return session_.take_output(); }
    const absl::Status& status() const { return status_; }
    C10dSession& session() { return session_; }

    absl::Status call(const proto::Request& request) override {
      TcpStoreService::Answers answers;
      GRADWIRE_RETURN_IF_ERROR(test_.service_.handle(number_, request, kNow, answers));
      absl::Status status;
      for (const TcpStoreService::Answer& answer : answers) {
        const absl::Status each = test_.clients_.at(answer.session)->session_.answer(answer.response);
        if (answer.session == number_ && !each.ok()) status = each;
      }
      return status;
    }
    void cancel(uint64_t request) override {
      TcpStoreService::Answers answers;
      test_.service_.cancel(number_, request, answers);
      test_.deliver(answers);
    }
    void close() {
      TcpStoreService::Answers answers;
      test_.service_.close(number_, answers);
      test_.deliver(answers);
    }
    int64_t add_workers(int64_t n) override {
      TcpStoreService::Answers answers;
      return test_.service_.add_workers(n, answers);
    }

   private:
    C10dSessionTest& test_;
    const uint64_t number_;
    C10dSession session_;
    absl::Status status_;
    friend class C10dSessionTest;
  };

  // Passes on answers to clients that waited.
  void deliver(const TcpStoreService::Answers& answers) {
    for (const TcpStoreService::Answer& answer : answers) {
      EXPECT_TRUE(clients_.at(answer.session)->session_.answer(answer.response).ok());
    }
  }
  // The call of a client of Gradwire.
  proto::Response gradwire(proto::Request request) {
    TcpStoreService::Answers answers;
    if (!service_.greeted(99)) {
      proto::Request hello;
      hello.mutable_hello()->set_magic(0x677773746f726531);
      hello.mutable_hello()->set_version(1);
      hello.mutable_hello()->set_client(99);
      EXPECT_TRUE(service_.handle(99, hello, kNow, answers).ok());
      answers.clear();
    }
    EXPECT_TRUE(service_.handle(99, request, kNow, answers).ok());
    for (const TcpStoreService::Answer& answer : answers) {
      if (answer.session != 99)
        EXPECT_TRUE(clients_.at(answer.session)->session_.answer(answer.response).ok());
    }
    return answers.empty() ? proto::Response() : answers.back().response;
  }

  Client& connect() {
    clients_.push_back(std::make_unique<Client>(*this, clients_.size()));
    EXPECT_TRUE(clients_.back()->session().start(*clients_.back()).ok());
    return *clients_.back();
  }

  TcpStoreService service_{7};
  std::vector<std::unique_ptr<Client>> clients_;
};

std::string query(C10dQuery code) { return std::string(1, static_cast<char>(code)); }

std::string number(int64_t value, int size = 8) {
  std::string bytes;
  put_c10d_number(bytes, static_cast<uint64_t>(value), size);
  return bytes;
}

std::string text(absl::string_view value) {
  std::string bytes;
  put_c10d_string(bytes, value);
  return bytes;
}

std::string list(const std::vector<std::string>& keys) {
  std::string bytes = number(static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) bytes += text(key);
  return bytes;
}

const std::string kStop(1, kC10dStopWaiting);
const std::string kCancelled(1, kC10dWaitCancelled);

TEST_F(C10dSessionTest, KeyOfAClientOfPyTorchIsTheSameKeyForOneOfGradwire) {
  Client& torch = connect();
  EXPECT_EQ(torch(query(C10dQuery::kSet) + text("/key") + text("value")), "");
  proto::Request get;
  get.mutable_watch()->set_key("key");
  EXPECT_EQ(gradwire(get).watch().value(), "value");
  proto::Request set;
  set.mutable_set()->set_key("/own");
  set.mutable_set()->set_value("x");
  gradwire(set);
  EXPECT_EQ(torch(query(C10dQuery::kGet) + text("//own")), text("x"));
  EXPECT_EQ(torch(query(C10dQuery::kListKeys)), list({"//own", "/key"}));
  EXPECT_EQ(torch(query(C10dQuery::kNumKeys)), number(2));
}

TEST_F(C10dSessionTest, QueriesThatDoNotWaitAreAnsweredInTheirOrder) {
  Client& torch = connect();
  EXPECT_EQ(
      torch(query(C10dQuery::kPing) + number(1234, 4) + query(C10dQuery::kAdd) + text("/n") + number(-5) +
            query(C10dQuery::kGet) + text("/n") + query(C10dQuery::kGet) + text("/missing") +
            query(C10dQuery::kAppend) + text("/n") + text("0") + query(C10dQuery::kCheck) + list({"/n"}) +
            query(C10dQuery::kCheck) + list({"/n", "/missing"}) + query(C10dQuery::kMultiSet) + number(2) +
            text("/a") + text("1") + text("/b") + text("") + query(C10dQuery::kMultiGet) +
            list({"/b", "/missing", "/n", "/a"})),
      number(1234, 4) + number(-5) + text("-5") + text("") + std::string(1, kC10dReady) +
          std::string(1, kC10dNotReady) + text("") + text("") + text("-50") + text("1"));
  EXPECT_EQ(torch(query(C10dQuery::kCompareSet) + text("/a") + text("1") + text("2") +
                  query(C10dQuery::kCompareSet) + text("/none") + text("x") + text("2") +
                  query(C10dQuery::kDeleteKey) + text("/a") + query(C10dQuery::kDeleteKey) + text("/a")),
            text("2") + text("x") + number(1) + number(0));
}

TEST_F(C10dSessionTest, WaitIsAnsweredByTheLastKeyAndCancelled) {
  Client& torch = connect();
  Client& other = connect();
  EXPECT_EQ(torch(query(C10dQuery::kWait) + list({})), kStop);
  EXPECT_EQ(torch(query(C10dQuery::kWait) + list({"/a", "/b"})), "");
  other(query(C10dQuery::kSet) + text("/a") + text(""));
  EXPECT_EQ(torch.output(), "");
  other(query(C10dQuery::kSet) + text("/b") + text(""));
  EXPECT_EQ(torch.output(), kStop);
  // The answer crosses with the cancellation: the client reads both.
  EXPECT_EQ(torch(query(C10dQuery::kCancelWait)), kCancelled);
  EXPECT_EQ(torch(query(C10dQuery::kWait) + list({"/c"})), "");
  EXPECT_EQ(service_.num_waiters(), 1);
  EXPECT_EQ(torch(query(C10dQuery::kCancelWait)), kCancelled);
  EXPECT_EQ(service_.num_waiters(), 0);
  other(query(C10dQuery::kSet) + text("/c") + text(""));
  EXPECT_EQ(torch.output(), "");
}

TEST_F(C10dSessionTest, EachItemWakesOneOfTheClientsThatPop) {
  Client& first = connect();
  Client& second = connect();
  Client& pusher = connect();
  EXPECT_EQ(first(query(C10dQuery::kWait) + list({"/q"})), "");
  EXPECT_EQ(second(query(C10dQuery::kWait) + list({"/q"})), "");
  pusher(query(C10dQuery::kQueuePush) + text("/q") + text("one"));
  EXPECT_EQ(first.output(), kStop);
  EXPECT_EQ(second.output(), "");
  EXPECT_EQ(pusher(query(C10dQuery::kQueueLen) + text("/q")), number(1));
  EXPECT_EQ(first(query(C10dQuery::kQueuePop) + text("/q")), number(1) + text("one"));
  EXPECT_EQ(first(query(C10dQuery::kQueuePop) + text("/q")), number(0));
  pusher(query(C10dQuery::kQueuePush) + text("/q") + text("two"));
  EXPECT_EQ(second.output(), kStop);
}

TEST_F(C10dSessionTest, ItemThatAWokenClientDoesNotTakeWakesTheNext) {
  Client& pusher = connect();
  const std::string wait = query(C10dQuery::kWait) + list({"/q"});
  const std::string pop = query(C10dQuery::kQueuePop) + text("/q");
  const auto woken_and_waiting = [&]() -> std::pair<Client&, Client&> {
    Client& first = connect();
    Client& second = connect();
    EXPECT_EQ(first(wait), "");
    EXPECT_EQ(second(wait), "");
    pusher(query(C10dQuery::kQueuePush) + text("/q") + text("item"));
    EXPECT_EQ(first.output(), kStop);
    EXPECT_EQ(second.output(), "");
    return {first, second};
  };
  {
    auto [first, second] = woken_and_waiting();
    first.close();
    EXPECT_EQ(second.output(), kStop) << "the client has died";
    EXPECT_EQ(second(pop), number(1) + text("item"));
  }
  {
    auto [first, second] = woken_and_waiting();
    EXPECT_EQ(first(query(C10dQuery::kCancelWait)), kCancelled);
    EXPECT_EQ(second.output(), kStop) << "the client's time was over";
    EXPECT_EQ(second(pop), number(1) + text("item"));
  }
  {
    auto [first, second] = woken_and_waiting();
    EXPECT_EQ(first(query(C10dQuery::kQueueLen) + text("/q")), number(1));
    EXPECT_EQ(second.output(), "");
    EXPECT_EQ(first(query(C10dQuery::kPing) + number(1, 4) + query(C10dQuery::kNumKeys)),
              number(1, 4) + number(0));
    EXPECT_EQ(second.output(), kStop) << "the client does something else";
    EXPECT_EQ(second(pop), number(1) + text("item"));
  }
}

// Two items, and the client that has taken the first one dies: nobody is woken for an item that another
// takes.
TEST_F(C10dSessionTest, ClientThatDiesAfterItsPopWakesNobody) {
  Client& first = connect();
  Client& second = connect();
  Client& third = connect();
  Client& pusher = connect();
  for (Client* each : {&first, &second, &third})
    EXPECT_EQ((*each)(query(C10dQuery::kWait) + list({"/q"})), "");
  for (int i = 0; i < 2; ++i) pusher(query(C10dQuery::kQueuePush) + text("/q") + text("item"));
  EXPECT_EQ(first.output(), kStop);
  EXPECT_EQ(second.output(), kStop);
  EXPECT_EQ(first(query(C10dQuery::kQueuePop) + text("/q")), number(2) + text("item"));
  first.close();
  EXPECT_EQ(third.output(), "");
  second.close();
  EXPECT_EQ(third.output(), kStop);
}

TEST_F(C10dSessionTest, WorkersOfBothKindsAreCountedTogether) {
  proto::Request hello;
  hello.mutable_hello()->set_magic(0x677773746f726531);
  hello.mutable_hello()->set_version(1);
  hello.mutable_hello()->set_client(5);
  hello.mutable_hello()->set_world_size(3);
  TcpStoreService::Answers answers;
  ASSERT_TRUE(service_.handle(50, hello, kNow, answers).ok());
  proto::Request wait;
  wait.set_id(8);
  wait.set_timeout_us(-1);
  wait.mutable_wait_for_workers();
  answers.clear();
  ASSERT_TRUE(service_.handle(50, wait, kNow, answers).ok());
  EXPECT_TRUE(answers.empty());
  const std::string join = query(C10dQuery::kAdd) + text(kC10dWorkersKey) + number(1);
  EXPECT_EQ(connect()(join), number(2));
  EXPECT_EQ(service_.num_waiters(), 1);
  Client& third = connect();
  EXPECT_EQ(third(join), number(3));
  EXPECT_EQ(service_.num_waiters(), 0);
  EXPECT_EQ(third(query(C10dQuery::kWait) + list({"init/"}) + query(C10dQuery::kGet) + text("init/")),
            kStop + text("3"));
  EXPECT_EQ(third(query(C10dQuery::kNumKeys)), number(0));
}

// A client may send any numbers.
TEST_F(C10dSessionTest, NumberOfWorkersIsBounded) {
  Client& torch = connect();
  const auto add = [](int64_t n) { return query(C10dQuery::kAdd) + text(kC10dWorkersKey) + number(n); };
  EXPECT_EQ(torch(add(-7)), number(0));
  EXPECT_EQ(torch(add(std::numeric_limits<int64_t>::max())), number(1 << 20));
  EXPECT_EQ(torch(add(std::numeric_limits<int64_t>::max())), number(1 << 20));
}

TEST_F(C10dSessionTest, ServerOfGradwireShowsItselfByTheComplementOfTheNonce) {
  EXPECT_EQ(connect()(query(C10dQuery::kPing) + number(kC10dGradwireNonce, 4)),
            number(static_cast<uint32_t>(~kC10dGradwireNonce), 4));
}

TEST_F(C10dSessionTest, WrongUseIsAnErrorAfterTheAnswersBefore) {
  const auto error_of = [this](const std::string& bytes) {
    Client& torch = connect();
    EXPECT_EQ(torch(query(C10dQuery::kPing) + number(1, 4) + bytes).substr(0, 4), number(1, 4));
    return torch.status();
  };
  connect()(query(C10dQuery::kSet) + text("/word") + text("seven"));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(query(C10dQuery::kAdd) + text("/word") + number(1))));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(query(C10dQuery::kGet) + text("no slash"))));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(query(C10dQuery::kGet) + text(""))));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(query(C10dQuery::kCheck) + list({"/a", "init/"}))));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(query(C10dQuery::kSet) + text("init/") + text("9"))));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(query(C10dQuery::kWait) + list({"init/"}))));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of(query(C10dQuery::kValidate) + number(kC10dMagic, 4))));
  EXPECT_TRUE(absl::IsInvalidArgument(
      error_of(query(C10dQuery::kWait) + list({"/x"}) + query(C10dQuery::kWait) + list({"/y"}))));
}

}  // namespace
}  // namespace gradwire::store
