#include "gradwire/store/tcp/tcp_store_service.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/store/calls/key_list.h"
#include "gradwire/store/calls/tcp_store_protocol.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

constexpr uint64_t kNumber = 77;
constexpr absl::Time kStart = absl::UnixEpoch();

class Service : public ::testing::Test {
 protected:
  using Session = TcpStoreService::Session;

  // Returns all answers of the service, to any session.
  TcpStoreService::Answers ask(Session session, const proto::Request& request, absl::Time now = kStart) {
    TcpStoreService::Answers answers;
    const absl::Status status = service_.handle(session, request, now, answers);
    EXPECT_TRUE(status.ok()) << status;
    return answers;
  }
  // Returns the only answer.
  proto::Response ask_one(Session session, const proto::Request& request) {
    TcpStoreService::Answers answers = ask(session, request);
    EXPECT_EQ(answers.size(), 1);
    if (answers.size() != 1) return {};
    EXPECT_EQ(answers.front().session, session);
    EXPECT_EQ(answers.front().response.id(), request.id());
    return std::move(answers.front().response);
  }
  static proto::Request hello(uint64_t client = 1, int world_size = 0) {
    proto::Request request;
    request.set_id(1);
    request.mutable_hello()->set_magic(kStoreMagic);
    request.mutable_hello()->set_version(kStoreVersion);
    request.mutable_hello()->set_client(client);
    request.mutable_hello()->set_world_size(world_size);
    return request;
  }
  Session greeted(Session session) {
    EXPECT_EQ(ask_one(session, hello(session)).code(), 0);
    return session;
  }
  static proto::Request set(const std::string& key, const std::string& value) {
    proto::Request request;
    request.set_id(2);
    request.mutable_set()->set_key(key);
    request.mutable_set()->set_value(value);
    return request;
  }
  static proto::Request wait(uint64_t id, const std::vector<std::string>& keys, int64_t timeout_us = -1) {
    proto::Request request;
    request.set_id(id);
    request.set_timeout_us(timeout_us);
    pack_keys(keys, *request.mutable_wait()->mutable_keys());
    return request;
  }
  static absl::StatusCode code_of(const proto::Response& response) {
    return static_cast<absl::StatusCode>(response.code());
  }

  TcpStoreService service_{kNumber};
};

TEST_F(Service, NothingIsAnsweredBeforeHello) {
  TcpStoreService::Answers answers;
  EXPECT_TRUE(absl::IsInvalidArgument(service_.handle(1, set("k", "v"), kStart, answers)));
  EXPECT_TRUE(absl::IsInvalidArgument(service_.handle(1, proto::Request(), kStart, answers)));
  proto::Request other_magic = hello();
  other_magic.mutable_hello()->set_magic(kStoreMagic + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(service_.handle(1, other_magic, kStart, answers)));
  EXPECT_TRUE(answers.empty());
  const proto::Response response = ask_one(1, hello());
  EXPECT_EQ(response.hello().server(), kNumber);
  EXPECT_TRUE(absl::IsInvalidArgument(service_.handle(1, hello(), kStart, answers))) << "a second Hello";
}

TEST_F(Service, OtherVersionsAndOtherServersAreNamed) {
  proto::Request newer = hello();
  newer.mutable_hello()->set_version(9);
  proto::Response response = ask_one(1, newer);
  EXPECT_EQ(code_of(response), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(response.message(), ::testing::HasSubstr("version 9"));
  proto::Request other_server = hello(5, 1);
  other_server.mutable_hello()->set_server(kNumber + 1);
  EXPECT_EQ(code_of(ask_one(1, other_server)), absl::StatusCode::kAborted);
  // Neither client was counted as a worker.
  EXPECT_EQ(code_of(ask_one(1, hello(6, 2))), absl::StatusCode::kOk);
}

TEST_F(Service, UnknownRequestIsInvalidAndHarmsNothing) {
  greeted(1);
  proto::Request unknown;
  unknown.set_id(9);
  EXPECT_EQ(code_of(ask_one(1, unknown)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(ask_one(1, set("k", "v"))), absl::StatusCode::kOk);
}

TEST_F(Service, MalformedListOfKeysIsInvalid) {
  greeted(1);
  proto::Request request = wait(3, {"one", "two"});
  request.mutable_wait()->mutable_keys()->set_sizes(1, 0xffffffff);
  EXPECT_EQ(code_of(ask_one(1, request)), absl::StatusCode::kInvalidArgument);
  request.mutable_wait()->mutable_keys()->set_sizes(1, 2);
  EXPECT_EQ(code_of(ask_one(1, request)), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> many(kMaxKeysPerWait + 1);
  EXPECT_EQ(code_of(ask_one(1, wait(3, many))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(service_.num_waiters(), 0);
}

TEST_F(Service, RequestOverTheLimitsIsRefused) {
  greeted(1);
  EXPECT_EQ(code_of(ask_one(1, set(std::string(kMaxKeyBytes + 1, 'k'), ""))),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of(ask_one(1, set("k", std::string(kMaxValueBytes + 1, 'v')))),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of(ask_one(1, wait(3, {std::string(kMaxKeyBytes + 1, 'k')}))),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(Service, WaitsOfOneSessionAreBounded) {
  TcpStoreService small(kNumber, /*max_waiting_bytes=*/1'000);
  TcpStoreService::Answers answers;
  ASSERT_TRUE(small.handle(1, hello(), kStart, answers).ok());
  answers.clear();
  uint64_t id = 10;
  while (answers.empty() && id < 100)
    ASSERT_TRUE(small.handle(1, wait(id++, {"never"}), kStart, answers).ok());
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(code_of(answers.front().response), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(small.num_waiters(), 1);
  // Another session has a limit of its own.
  answers.clear();
  ASSERT_TRUE(small.handle(2, hello(2), kStart, answers).ok());
  answers.clear();
  ASSERT_TRUE(small.handle(2, wait(1, {"never"}), kStart, answers).ok());
  EXPECT_TRUE(answers.empty());
}

// Two waits for a key of this length fit into 1500 bytes, one into 1000.
const std::string kLongKey(400, 'k');

TEST_F(Service, WaitsOfAllSessionsAreBounded) {
  TcpStoreService small(kNumber, /*max_waiting_bytes=*/1'000, /*max_all_waiting_bytes=*/1'500);
  TcpStoreService::Answers answers;
  for (Session session : {1, 2, 3}) {
    ASSERT_TRUE(small.handle(session, hello(session), kStart, answers).ok());
    answers.clear();
    ASSERT_TRUE(small.handle(session, wait(1, {kLongKey}), kStart, answers).ok());
    EXPECT_EQ(answers.empty(), session < 3);
  }
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(code_of(answers.front().response), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(answers.front().response.message(), ::testing::HasSubstr("all clients"));
  // A request that need not wait is still answered.
  answers.clear();
  ASSERT_TRUE(small.handle(3, wait(2, {kLongKey}, /*timeout_us=*/0), kStart, answers).ok());
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(code_of(answers.front().response), absl::StatusCode::kOk);
}

TEST_F(Service, AnswersThatOneChangeCausesAreBoundedForEachSession) {
  constexpr std::size_t kValueBytes = 1000;
  TcpStoreService service(kNumber, kMaxWaitingBytes, kMaxAllWaitingBytes, 2 * kValueBytes);
  TcpStoreService::Answers answers;
  for (const Session session : {1, 2}) {
    ASSERT_TRUE(service.handle(session, hello(session), kStart, answers).ok());
  }
  for (uint64_t id = 1; id <= 5; ++id) {
    proto::Request values = wait(id, {"key"});
    values.mutable_wait()->set_with_values(true);
    ASSERT_TRUE(service.handle(1, values, kStart, answers).ok());
  }
  proto::Request watch;
  watch.set_id(9);
  watch.set_timeout_us(-1);
  watch.mutable_watch()->set_key("key");
  ASSERT_TRUE(service.handle(2, watch, kStart, answers).ok());
  answers.clear();
  ASSERT_TRUE(service.handle(2, set("key", std::string(kValueBytes, 'v')), kStart, answers).ok());
  std::vector<absl::StatusCode> codes;
  for (TcpStoreService::Answer& answer : answers) {
    const Session session = answer.session;
    const proto::Response response = complete(std::move(answer));
    if (session == 1) codes.push_back(code_of(response));
    if (session == 2 && response.id() == 9) EXPECT_EQ(response.watch().value().size(), kValueBytes);
  }
  using absl::StatusCode;
  EXPECT_THAT(codes, ::testing::ElementsAre(StatusCode::kOk, StatusCode::kOk, StatusCode::kResourceExhausted,
                                            StatusCode::kResourceExhausted, StatusCode::kResourceExhausted));
  EXPECT_EQ(service.num_waiters(), 0);
}

TEST_F(Service, AnswersThatOneChangeCausesShareTheirValues) {
  proto::Request values = wait(3, {"first", "last", "first"});
  values.mutable_wait()->set_with_values(true);
  for (const Session session : {1, 2}) {
    greeted(session);
    EXPECT_TRUE(ask(session, values).empty());
  }
  ask(1, set("first", std::string(1000, 'f')));
  TcpStoreService::Answers answers = ask(2, set("last", "l"));
  ASSERT_EQ(answers.size(), 3);
  EXPECT_EQ(answers[0].values, answers[1].values);
  for (int i = 0; i < 2; ++i) {
    EXPECT_LT(answers[i].response.ByteSizeLong(), 100);
    EXPECT_THAT(*unpack_keys(complete(std::move(answers[i])).wait().values()),
                ::testing::ElementsAre(std::string(1000, 'f'), "l", std::string(1000, 'f')));
  }
}

TEST_F(Service, WaitingBytesAreGivenBackHoweverTheWaitEnds) {
  for (const std::size_t max_all : {std::size_t{1'500}, std::size_t{1'000'000}}) {
    TcpStoreService small(kNumber, /*max_waiting_bytes=*/1'000, max_all);
    TcpStoreService::Answers answers;
    const auto handle = [&](Session session, const proto::Request& request) {
      answers.clear();
      ASSERT_TRUE(small.handle(session, request, kStart, answers).ok());
    };
    const auto greet = [&](Session session) { handle(session, hello(session, /*world_size=*/2)); };
    greet(1);
    const std::function<void()> endings[] = {
        [&] {
          handle(1, wait(5, {kLongKey}));
          ASSERT_TRUE(answers.empty());
          handle(1, set(kLongKey, "satisfied"));
        },
        [&] {
          proto::Request watch;
          watch.set_id(5);
          watch.set_timeout_us(-1);
          watch.mutable_watch()->set_key(kLongKey);
          handle(1, watch);
          ASSERT_TRUE(answers.empty());
          handle(1, set(kLongKey, "satisfied"));
        },
        [&] {
          handle(1, wait(5, {kLongKey}, /*timeout_us=*/1));
          ASSERT_TRUE(answers.empty());
          small.expire(kStart + absl::Microseconds(1), answers);
        },
        [&] {
          handle(1, wait(5, {kLongKey}));
          ASSERT_TRUE(answers.empty());
          small.close(1, answers);
          greet(1);
        },
    };
    for (const auto& end : endings) {
      for (int round = 0; round < 5; ++round) {
        SCOPED_TRACE(absl::StrCat("ending ", &end - endings, " round ", round));
        ASSERT_NO_FATAL_FAILURE(end());
        ASSERT_EQ(answers.empty() ? absl::StatusCode::kOk : code_of(answers.front().response),
                  absl::StatusCode::kOk);
        EXPECT_EQ(small.num_waiters(), 0);
        proto::Request forget;
        forget.set_id(6);
        forget.mutable_delete_key()->set_key(kLongKey);
        handle(1, forget);
      }
    }
    // Several waits for the workers in one session end when all workers have connected.
    for (uint64_t id = 10; id < 13; ++id) {
      proto::Request workers;
      workers.set_id(id);
      workers.set_timeout_us(-1);
      workers.mutable_wait_for_workers();
      handle(1, workers);
      ASSERT_TRUE(answers.empty());
    }
    greet(2);
    EXPECT_EQ(answers.size(), 4);
    handle(1, wait(20, {kLongKey}));
    EXPECT_TRUE(answers.empty());
  }
}

TEST_F(Service, ChangeAnswersAWaitInItsOwnSession) {
  greeted(1);
  greeted(2);
  EXPECT_TRUE(ask(1, wait(5, {"a", "b"})).empty());
  EXPECT_EQ(ask(2, set("a", "1")).size(), 1);
  const TcpStoreService::Answers answers = ask(2, set("b", "2"));
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(answers[0].session, 1);
  EXPECT_EQ(answers[0].response.id(), 5);
  EXPECT_TRUE(answers[0].response.has_wait());
  EXPECT_EQ(answers[1].session, 2);
  EXPECT_EQ(service_.num_waiters(), 0);
}

TEST_F(Service, DeadlineEndsAWaitWithTheMissingKeys) {
  greeted(1);
  EXPECT_EQ(service_.next_deadline(), absl::InfiniteFuture());
  ask(1, wait(5, {"b", "a", "b"}, 2'000));
  ask(1, wait(6, {"c"}, 1'000));
  ask(1, wait(7, {"d"}));
  ask(1, set("b", ""));
  EXPECT_EQ(service_.next_deadline(), kStart + absl::Milliseconds(1));
  TcpStoreService::Answers answers;
  service_.expire(kStart + absl::Microseconds(999), answers);
  EXPECT_TRUE(answers.empty());
  service_.expire(kStart + absl::Milliseconds(2), answers);
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(answers[0].response.id(), 6);
  EXPECT_THAT(*unpack_keys(answers[1].response.wait().missing()), ::testing::ElementsAre("a"));
  EXPECT_EQ(service_.next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(service_.num_waiters(), 1);
  // A timeout of 0 checks once.
  EXPECT_THAT(*unpack_keys(ask_one(1, wait(8, {"d", "b"}, 0)).wait().missing()), ::testing::ElementsAre("d"));
}

TEST_F(Service, SessionThatEndsIsForgotten) {
  greeted(1);
  greeted(2);
  ask(1, wait(5, {"a"}, 1'000));
  ask(1, wait(5, {"a"}));  // The same id: the client's own mistake.
  TcpStoreService::Answers answers;
  service_.close(1, answers);
  service_.close(1, answers);
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(service_.num_waiters(), 0);
  EXPECT_EQ(service_.next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(ask(2, set("a", "")).size(), 1);
}

TEST_F(Service, SessionHasOneWaitInTurn) {
  greeted(1);
  proto::Request in_turn = wait(5, {"q"});
  in_turn.mutable_wait()->set_in_turn(true);
  EXPECT_TRUE(ask(1, in_turn).empty());
  in_turn.set_id(6);
  EXPECT_EQ(code_of(ask_one(1, in_turn)), absl::StatusCode::kInvalidArgument);
  // Its end makes room for the next.
  TcpStoreService::Answers answers;
  service_.cancel(1, 5, answers);
  EXPECT_TRUE(ask(1, in_turn).empty());
  EXPECT_EQ(service_.num_waiters(), 1);
}

TEST_F(Service, WorkersAreCountedOnceAndAwaited) {
  EXPECT_EQ(code_of(ask_one(1, hello(11, 2))), absl::StatusCode::kOk);
  proto::Request all;
  all.set_id(4);
  all.set_timeout_us(-1);
  all.mutable_wait_for_workers();
  EXPECT_TRUE(ask(1, all).empty());
  // The same client connects again, over another connection.
  EXPECT_EQ(ask(2, hello(11, 2)).size(), 1);
  const proto::Response contradiction = ask_one(3, hello(13, 3));
  EXPECT_EQ(code_of(contradiction), absl::StatusCode::kInvalidArgument);
  const TcpStoreService::Answers answers = ask(3, hello(12, 2));
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(answers[0].session, 1);
  EXPECT_EQ(answers[0].response.wait_for_workers().workers(), 2);
  EXPECT_EQ(ask_one(2, all).wait_for_workers().workers(), 2);
}

TEST_F(Service, StopAnswersAllWaitingAndLaterRequests) {
  greeted(1);
  ask(1, wait(5, {"a"}, 1'000));
  TcpStoreService::Answers answers;
  service_.stop(answers);
  service_.stop(answers);
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(code_of(answers.front().response), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_of(ask_one(1, set("a", ""))), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_of(ask_one(2, hello())), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gradwire::store
