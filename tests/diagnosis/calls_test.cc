// Problems of calls and references that are planted in a running job. tools/inspect names each of them and
// the culprit, and finds nothing when the problem is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/tests/diagnosis/diagnosis.h"
#include "gradwire/tests/diagnosis/gate.h"
#include "gradwire/tests/diagnosis/job.h"

namespace gradwire::tests {
namespace {

using inspect::Finding;
using rpc::Destination;
using rpc::RRef;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(30);

Destination far(const char* name) { return Destination(name).with_timeout(kLong); }

Future<void> look_up() { return Gate::instance().wait(); }
GRADWIRE_RPC(look_up)

void answer_at_once() {}
GRADWIRE_RPC(answer_at_once)

// Makes the call that is slow, from within a handler.
void serve_user() { rpc::rpc_sync<&look_up>(far("database")); }
GRADWIRE_RPC(serve_user)

// Signs for others. `ask` asks another desk, which asks this one to sign.
template <class D>
struct AnyDesk {
  int64_t sign() { return 1; }
  int64_t ask(const RRef<D>& self, const RRef<D>& other) {
    return other.with_timeout(kLong).template rpc_sync<&D::ask_back>(self);
  }
  int64_t ask_back(const RRef<D>& asker) { return asker.with_timeout(kLong).template rpc_sync<&D::sign>(); }
};
// Its methods run one at a time: it never signs, because it is still asking.
struct Desk {
  int64_t sign() { return AnyDesk<Desk>().sign(); }
  int64_t ask(const RRef<Desk>& self, const RRef<Desk>& other) { return AnyDesk<Desk>().ask(self, other); }
  int64_t ask_back(const RRef<Desk>& asker) { return AnyDesk<Desk>().ask_back(asker); }
};
GRADWIRE_RPC_SERIAL_CLASS(Desk)
GRADWIRE_RPC_METHOD(Desk, sign)
GRADWIRE_RPC_METHOD(Desk, ask)
GRADWIRE_RPC_METHOD(Desk, ask_back)
// Its methods run at the same time.
struct Office {
  int64_t sign() { return AnyDesk<Office>().sign(); }
  int64_t ask(const RRef<Office>& self, const RRef<Office>& other) {
    return AnyDesk<Office>().ask(self, other);
  }
  int64_t ask_back(const RRef<Office>& asker) { return AnyDesk<Office>().ask_back(asker); }
};
GRADWIRE_RPC_CLASS(Office)
GRADWIRE_RPC_METHOD(Office, sign)
GRADWIRE_RPC_METHOD(Office, ask)
GRADWIRE_RPC_METHOD(Office, ask_back)

struct Sheet {};
GRADWIRE_RPC_CLASS(Sheet)

TEST(Diagnosis, AHealthyJobShowsNoFinding) {
  const Job job({{"web"}, {"server"}, {"database"}});
  const RRef<Sheet> sheet = job[0]->remote<Sheet>("server");
  const RRef<Desk> desk = job[0]->remote<Desk>("database");
  EXPECT_EQ(desk.rpc_sync<&Desk::sign>(), 1);
  Diagnosis diagnosis(job.place());
  diagnosis.expect_healthy();
  EXPECT_EQ(diagnosis.view().workers.size(), 3u);
}

TEST(Diagnosis, ASlowHandlerAtTheEndOfAChain) {
  Gate::instance().close();
  const Job job({{"web"}, {"server"}, {"database"}});
  Diagnosis diagnosis(job.place());
  const Future<void> answer = job[0]->rpc_async<&serve_user>(far("server"));
  EXPECT_THAT(diagnosis.expect(Finding::Kind::kSlowCall, {"database"}),
              HasSubstr("look_up\" at \"database\": running for "));
  Gate::instance().open();
  answer.wait();
  diagnosis.expect_healthy();
}

TEST(Diagnosis, ADeadlockOfNestedCalls) {
  const Job job({{"a"}, {"b"}});
  Diagnosis diagnosis(job.place());
  const RRef<Desk> first = job[0]->remote<Desk>("a"), second = job[0]->remote<Desk>("b");
  const Future<int64_t> answer = first.with_timeout(kLong).rpc_async<&Desk::ask>(first, second);
  EXPECT_THAT(
      diagnosis.expect(Finding::Kind::kDeadlock, {"a", "b"}),
      AllOf(HasSubstr("Desk::ask\" at \"a\" waits for "), HasSubstr("Desk::ask_back\" at \"b\" waits for "),
            HasSubstr("Desk::sign\" at \"a\" waits for ")));
}

TEST(Diagnosis, NestedCallsThatAreNoDeadlock) {
  const Job job({{"a"}, {"b"}});
  Diagnosis diagnosis(job.place());
  const RRef<Office> first = job[0]->remote<Office>("a"), second = job[0]->remote<Office>("b");
  EXPECT_EQ(first.rpc_sync<&Office::ask>(first, second), 1);
  diagnosis.expect_healthy();
}

TEST(Diagnosis, ReferencesThatNobodyReleases) {
  const Job job({{"trainer"}, {"server"}});
  Diagnosis diagnosis(job.place());
  std::vector<RRef<Sheet>> kept;
  for (int i = 0; i < 99; ++i) kept.push_back(job[0]->remote<Sheet>("server"));
  for (const RRef<Sheet>& each : kept) each.confirmed().wait();
  diagnosis.expect_healthy();
  kept.push_back(job[0]->remote<Sheet>("server"));
  EXPECT_THAT(
      diagnosis.expect(Finding::Kind::kLeak, {"trainer"}),
      AllOf(HasSubstr("100 RRefs of type "), HasSubstr("Sheet\" at \"server\" are held by \"trainer\"")));
  kept.clear();
  diagnosis.expect_healthy();
}

TEST(Diagnosis, AFullFlowWindow) {
  Gate::instance().close();
  Member trainer{"trainer"};
  trainer.options.flow.max_calls = 2;
  const Job job({trainer, {"server"}});
  Diagnosis diagnosis(job.place());
  std::vector<Future<void>> inside;
  for (int i = 0; i < 2; ++i) inside.push_back(job[0]->rpc_async<&look_up>(far("server")));
  std::thread outside([&] { job[0]->rpc_sync<&answer_at_once>(far("server")); });
  EXPECT_THAT(diagnosis.expect(Finding::Kind::kFullWindow, {"server"}),
              HasSubstr("1 call of \"trainer\" waits until \"server\" has answered others"));
  Gate::instance().open();
  outside.join();
  for (const Future<void>& each : inside) each.wait();
  diagnosis.expect_healthy();
}

TEST(Diagnosis, AWorkerOnTcpThatShouldBeOnShm) {
  for (const bool repaired : {false, true}) {
    Member server{"server"};
    if (!repaired) server.options.transports = {"tcp"};
    const Job job({{"trainer"}, server});
    Diagnosis diagnosis(job.place());
    diagnosis.expect_healthy();
    const RRef<Sheet> sheet = job[0]->remote<Sheet>("server");
    sheet.confirmed().wait();
    if (repaired) {
      diagnosis.expect_healthy();
    } else {
      EXPECT_THAT(diagnosis.expect(Finding::Kind::kSlowTransport, {"server"}),
                  HasSubstr("\"server\" does not offer shm"));
    }
  }
}

}  // namespace
}  // namespace gradwire::tests
