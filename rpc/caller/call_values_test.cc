#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/fragile.h"
#include "gradwire/codec/codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"

// Values of users in every kind of call: their copies, moves and destructors run on no thread that drives the
// event loop, and one that throws ends its call and nothing else.
namespace gradwire::rpc {

using ::gradwire::testing::Fragile;
using ::gradwire::testing::Moves;

template <Moves kMoves>
struct Codec<Fragile<kMoves>> {
  static std::string type_name() { return absl::StrCat("Fragile", static_cast<int>(kMoves)); }
  static absl::Status encode(const Fragile<kMoves>& value, Encoder&, proto::Value& out) {
    out.set_integer(value.number());
    return absl::OkStatus();
  }
  static absl::StatusOr<Fragile<kMoves>> decode(const proto::Value& in, Decoder&) {
    return absl::StatusOr<Fragile<kMoves>>(absl::in_place, static_cast<int>(in.integer()));
  }
};

namespace {

using ::testing::HasSubstr;

using CopiesOnly = Fragile<Moves::kCopiesOnly>;
using NeverThrows = Fragile<Moves::kNeverThrow>;
using MayThrow = Fragile<Moves::kMayThrow>;

int64_t same_number(int64_t number) { return number; }
GRADWIRE_RPC(same_number)

template <class T>
T make(int64_t number) {
  return T(static_cast<int>(number));
}
template <class T>
int64_t take(T value) {
  return value.number();
}
template <class T>
T pass_on(const T& value) {
  return value;
}
// Completes when the worker's own call does, on a thread that drives.
template <class T>
Future<T> make_later(int64_t number) {
  Future<int64_t> own = rpc_async<&same_number>(Agent::current()->get_worker_info().name, number);
  return own.then([](int64_t n) { return T(static_cast<int>(n)); });
}
template <class T>
Future<T> make_in_coroutine(int64_t number) {
  co_return T(
      static_cast<int>(co_await rpc_async<&same_number>(Agent::current()->get_worker_info().name, number)));
}

#define REGISTER_FOR(T)                             \
  GRADWIRE_RPC_AS("make " #T, &make<T>)             \
  GRADWIRE_RPC_AS("take " #T, &take<T>)             \
  GRADWIRE_RPC_AS("pass on " #T, &pass_on<T>)       \
  GRADWIRE_RPC_AS("make later " #T, &make_later<T>) \
  GRADWIRE_RPC_AS("make in a coroutine " #T, &make_in_coroutine<T>)
REGISTER_FOR(CopiesOnly)
REGISTER_FOR(NeverThrows)
REGISTER_FOR(MayThrow)

const std::string kCallee = "worker1";

// Each returns the number that arrives.
template <class T>
using Form = int64_t (*)(const std::shared_ptr<Agent>& agent);

template <class T>
Future<T> await_here(Future<T> future) {
  T value = co_await future;
  co_return value;
}

template <class T>
const std::vector<std::pair<std::string, Form<T>>>& forms() {
  using AgentPtr = const std::shared_ptr<Agent>&;
  static const auto& all = *new std::vector<std::pair<std::string, Form<T>>>{
      {"async", [](AgentPtr a) -> int64_t { return a->rpc_async<&make<T>>(kCallee, 7).wait().number(); }},
      {"sync", [](AgentPtr a) -> int64_t { return a->rpc_sync<&make<T>>(kCallee, 7).number(); }},
      {"argument", [](AgentPtr a) -> int64_t { return a->rpc_sync<&take<T>>(kCallee, T(7)); }},
      {"passed on",
       [](AgentPtr a) -> int64_t { return a->rpc_async<&pass_on<T>>(kCallee, T(7)).wait().number(); }},
      {"then",
       [](AgentPtr a) -> int64_t {
         return a->rpc_async<&make<T>>(kCallee, 7)
             .then([](const T& value) { return T(value); })
             .wait()
             .number();
       }},
      {"flattened",
       [](AgentPtr a) -> int64_t {
         return a->rpc_async<&same_number>(kCallee, 7)
             .then([a](int64_t number) { return a->rpc_async<&make<T>>(kCallee, number); })
             .wait()
             .number();
       }},
      {"collected",
       [](AgentPtr a) -> int64_t {
         std::vector<Future<T>> futures;
         for (int i = 0; i < 3; ++i) futures.push_back(a->rpc_async<&make<T>>(kCallee, 7));
         return collect(std::move(futures)).wait().back().number();
       }},
      {"awaited",
       [](AgentPtr a) -> int64_t { return await_here(a->rpc_async<&make<T>>(kCallee, 7)).wait().number(); }},
      {"made by a later future",
       [](AgentPtr a) -> int64_t { return a->rpc_async<&make_later<T>>(kCallee, 7).wait().number(); }},
      {"made by a coroutine",
       [](AgentPtr a) -> int64_t { return a->rpc_async<&make_in_coroutine<T>>(kCallee, 7).wait().number(); }},
      {"to_here", [](AgentPtr a) -> int64_t { return a->remote<&make<T>>(kCallee, 7).to_here().number(); }},
      {"to_here by its owner",
       [](AgentPtr a) -> int64_t { return a->remote<&make<T>>("worker0", 7).to_here().number(); }},
      {"fetched",
       [](AgentPtr a) -> int64_t { return a->remote<&make<T>>(kCallee, 7).to_here_async().wait().number(); }},
      {"fetched by its owner",
       [](AgentPtr a) -> int64_t {
         return a->remote<&make<T>>("worker0", 7).to_here_async().wait().number();
       }},
  };
  return all;
}

template <class T>
class CallValues : public ::testing::Test {
 protected:
  testing::Group group_{2};
};
using Types = ::testing::Types<CopiesOnly, NeverThrows, MayThrow>;
TYPED_TEST_SUITE(CallValues, Types);

TYPED_TEST(CallValues, AreNotTouchedOnDuty) {
  for (const auto& [name, form] : forms<TypeParam>()) {
    TypeParam::on_duty_count = 0;
    for (int i = 0; i < 20; ++i) EXPECT_EQ(form(this->group_[0]), 7) << name;
    // Nobody reads these results.
    for (int i = 0; i < 20; ++i) (void)this->group_[0]->template rpc_async<&make<TypeParam>>(kCallee, 7);
    this->group_.expect_empty();
    EXPECT_EQ(TypeParam::on_duty_count, 0) << name;
    // The task that resumes a coroutine may end after the result has arrived.
    EXPECT_TRUE(eventually([] { return TypeParam::living == 0; })) << name;
  }
}

TYPED_TEST(CallValues, OneThatThrowsEndsItsCallAndNothingElse) {
  for (const auto& [name, form] : forms<TypeParam>()) {
    constexpr int kMostCopies = 100;
    int failed = 0;
    int n = 1;
    for (; n <= kMostCopies; ++n) {
      TypeParam::until_throw = n;
      try {
        EXPECT_EQ(form(this->group_[0]), 7) << name;
      } catch (const std::exception& error) {
        ++failed;
        EXPECT_THAT(error.what(), HasSubstr("the copy failed")) << name;
      }
      const bool ended = TypeParam::until_throw.exchange(0) > 0;
      EXPECT_EQ(this->group_[0]->template rpc_sync<&same_number>(kCallee, 5), 5);
      EXPECT_EQ(this->group_[1]->template rpc_sync<&same_number>("worker0", 5), 5);
      if (ended) break;
    }
    EXPECT_LE(n, kMostCopies) << name;
    if (n > 1) EXPECT_GT(failed, 0) << name;
    this->group_.expect_empty();
    // The task that resumes a coroutine may end after the result has arrived.
    EXPECT_TRUE(eventually([] { return TypeParam::living == 0; })) << name;
  }
}

}  // namespace
}  // namespace gradwire::rpc
