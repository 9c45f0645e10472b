// A hot object and a slow store, planted in a running job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/interface/forwarding_store.h"
#include "gradwire/tests/diagnosis/diagnosis.h"
#include "gradwire/tests/diagnosis/gate.h"
#include "gradwire/tests/diagnosis/job.h"

namespace gradwire::tests {
namespace {

using inspect::Finding;
using rpc::RRef;
using ::testing::HasSubstr;

// Its methods run one at a time.
struct Table {
  void push() { Gate::instance().wait().wait(); }
};
GRADWIRE_RPC_SERIAL_CLASS(Table)
GRADWIRE_RPC_METHOD(Table, push)

TEST(Diagnosis, AHotSerialObject) {
  Gate::instance().close();
  const Job job({{"a"}, {"b"}, {"server"}});
  Diagnosis diagnosis(job.place());
  const RRef<Table> table = job[0]->remote<Table>("server");
  std::vector<Future<void>> pushes;
  // One runs, and the others wait for their turn.
  for (int i = 0; i < 10; ++i) {
    pushes.push_back(table.with_timeout(absl::Minutes(30)).rpc_async<&Table::push>());
  }
  EXPECT_THAT(diagnosis.expect(Finding::Kind::kHotObject, {"server"}),
              AllOf(HasSubstr("9 calls wait for a turn on an object of class "),
                    HasSubstr("Table\" at \"server\", where "), HasSubstr("Table::push\" runs")));
  Gate::instance().open();
  for (const Future<void>& push : pushes) push.wait();
  diagnosis.expect_healthy();
}

// A store whose answers take long.
class SlowStore : public store::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

 private:
  static void dawdle() { absl::SleepFor(2 * short_thresholds().slow_store); }

  absl::Status do_set(absl::Span<const Entry> entries, absl::Time deadline) override {
    dawdle();
    return ForwardingStore::do_set(entries, deadline);
  }
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override {
    dawdle();
    return ForwardingStore::do_add(key, n, deadline);
  }
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override {
    dawdle();
    return ForwardingStore::do_compare_set(key, expected, desired, deadline);
  }
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override {
    dawdle();
    return ForwardingStore::do_delete_key(key, deadline);
  }
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override {
    dawdle();
    return ForwardingStore::do_num_keys(prefix, deadline);
  }
  absl::StatusOr<bool> do_check(const std::vector<std::string>& keys, absl::Time deadline) override {
    dawdle();
    return ForwardingStore::do_check(keys, deadline);
  }
  absl::StatusOr<Values> do_multi_get(const std::vector<std::string>& keys, absl::Time deadline) override {
    dawdle();
    return ForwardingStore::do_multi_get(keys, deadline);
  }
};

TEST(Diagnosis, AStoreThatIsSlowForOneWorker) {
  const std::string path = new_path("store");
  {
    Member far{"far"};
    far.options.store = std::make_shared<SlowStore>(std::make_shared<store::FileStore>(path));
    Member near{"near"};
    near.options.store = std::make_shared<store::FileStore>(path);
    const Job job({near, far});
    Diagnosis diagnosis("file://" + path);
    EXPECT_THAT(diagnosis.expect(Finding::Kind::kSlowStore, {"far"}),
                AllOf(HasSubstr(" at \"far\", but not at the other workers"), HasSubstr(path)));
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace gradwire::tests
