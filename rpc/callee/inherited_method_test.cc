#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A first base, so that an object's second base has another address than the object.
struct Named {
  virtual ~Named() = default;
  std::string name() const { return name_; }
  std::string name_ = "unnamed";
};
struct Counter {
  virtual ~Counter() = default;
  int64_t add(int64_t by) { return value_ += by; }
  int64_t read() const { return value_; }
  int64_t read(int64_t times) const { return value_ * times; }
  virtual std::string kind() const { return "counter"; }
  int64_t not_registered() const { return 0; }
  int64_t value_ = 0;
};
struct Gauge : Named, Counter {
  explicit Gauge(int64_t value) { value_ = value; }
  std::string kind() const override { return "gauge"; }
  int64_t own() const { return 42; }
  static int64_t limit() { return 100; }
};
struct Virtual : virtual Counter {
  explicit Virtual(int64_t value) { value_ = value; }
};

inline constexpr auto read_once = static_cast<int64_t (Counter::*)() const>(&Counter::read);
inline constexpr auto read_times = static_cast<int64_t (Counter::*)(int64_t) const>(&Counter::read);

GRADWIRE_RPC_CLASS(Counter)
GRADWIRE_RPC_METHOD(Counter, add)
GRADWIRE_RPC_CLASS(Gauge, int64_t)
GRADWIRE_RPC_METHOD(Gauge, own)
GRADWIRE_RPC_METHOD(Gauge, name)
GRADWIRE_RPC_METHOD(Gauge, add)
GRADWIRE_RPC_METHOD(Gauge, limit)
GRADWIRE_RPC_IDEMPOTENT_METHOD(Gauge, kind)
GRADWIRE_RPC_METHOD_AS(Gauge, "read_once", read_once)
GRADWIRE_RPC_METHOD_AS(Gauge, "read_times", read_times)
GRADWIRE_RPC_CLASS(Virtual, int64_t)
GRADWIRE_RPC_METHOD(Virtual, add)

TEST(InheritedMethod, RunsOnTheDerivedObject) {
  testing::Group group(2);
  AgentGuard guard(group[0]);
  {
    const RRef<Gauge> gauge = remote<Gauge>("worker1", 7);
    EXPECT_EQ(gauge.rpc_sync<&Gauge::add>(3), 10);
    EXPECT_EQ(gauge.rpc_async<&Gauge::add>(1).wait(), 11);
    EXPECT_EQ(gauge.remote<&Gauge::add>(1).to_here(), 12);
    EXPECT_EQ(gauge.rpc_sync<&Gauge::name>(), "unnamed");
    EXPECT_EQ(gauge.rpc_sync<&Gauge::own>(), 42);
    EXPECT_EQ(gauge.rpc_sync<&Gauge::kind>(), "gauge");
    EXPECT_EQ(gauge.rpc_sync<read_once>(), 12);
    EXPECT_EQ(gauge.rpc_sync<read_times>(2), 24);
    EXPECT_EQ(rpc_sync<&Gauge::limit>("worker1"), 100);
    // The base class has an entry of its own.
    const RRef<Counter> counter = remote<Counter>("worker1");
    EXPECT_EQ(counter.rpc_sync<&Counter::add>(3), 3);
    const RRef<Virtual> with_virtual_base = remote<Virtual>("worker1", 5);
    EXPECT_EQ(with_virtual_base.rpc_sync<&Virtual::add>(1), 6);
  }
  group.expect_empty();
}

TEST(InheritedMethod, HasTheNameOfTheDerivedClass) {
  const Callee* const callee = callee_of_inherited<Gauge, &Counter::add>;
  ASSERT_NE(callee, nullptr);
  EXPECT_THAT(callee->name, HasSubstr("Gauge::add"));
  EXPECT_NE(callee, callee_of_function<&Counter::add>);
  EXPECT_THAT((callee_of_inherited<Gauge, &Counter::kind>), ::testing::IsNull());
  EXPECT_TRUE(callee_of_function<&Gauge::kind>->idempotent);
  EXPECT_THAT((callee_of_inherited<Gauge, read_times>)->name, HasSubstr("Gauge::read_times"));
}

TEST(InheritedMethod, ThatIsNotRegisteredForTheClassNamesTheRegistration) {
  testing::Group group(2);
  AgentGuard guard(group[0]);
  const RRef<Gauge> gauge = remote<Gauge>("worker1", 7);
  const absl::Status status = status_of([&] { gauge.rpc_sync<&Gauge::not_registered>(); });
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("GRADWIRE_RPC_METHOD("), HasSubstr("Gauge"), HasSubstr("not_registered)")));
}

TEST(RRef, OfAnObjectThatExistsSharesIt) {
  testing::Group group(2);
  AgentGuard guard(group[0]);
  {
    const auto gauge = std::make_shared<Gauge>(1);
    const RRef<Gauge> reference(gauge);
    EXPECT_EQ(reference.rpc_sync<&Gauge::add>(2), 3);
    EXPECT_EQ(gauge->value_, 3);
    EXPECT_EQ(&reference.local_value(), gauge.get());
    EXPECT_TRUE(
        absl::IsInvalidArgument(status_of([] { RRef<Gauge> none(std::shared_ptr<Gauge>(nullptr)); })));
  }
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
