#include "gradwire/rpc/callee/callee_list.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/registry/registration.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace listed {
int64_t twice(int64_t a) { return 2 * a; }
double half(double a) { return a / 2; }
GRADWIRE_RPC(twice)
GRADWIRE_RPC_IDEMPOTENT(half)

struct Counter {
  explicit Counter(int64_t start) : value(start) {}
  int64_t add(int64_t n) { return value += n; }
  int64_t value;
};
GRADWIRE_RPC_CLASS(Counter, int64_t)
GRADWIRE_RPC_METHOD(Counter, add)
}  // namespace listed

namespace {

proto::CalleeList list(const proto::ListCallees& request) {
  absl::StatusOr<ServiceReply> reply = serve_list_callees(request.SerializeAsString());
  EXPECT_TRUE(reply.ok()) << reply.status();
  proto::CalleeList list;
  EXPECT_TRUE(reply.ok() && list.ParseFromString(reply->body));
  return list;
}

TEST(CalleeList, EntriesHaveKindSignatureAndObjectTypeInOrder) {
  proto::ListCallees request;
  request.set_prefix("gradwire::rpc::listed::");
  const proto::CalleeList all = list(request);
  ASSERT_EQ(all.callees_size(), 4);
  EXPECT_FALSE(all.more());
  EXPECT_EQ(all.callees(0).name(), "gradwire::rpc::listed::half");
  EXPECT_TRUE(all.callees(0).idempotent());
  EXPECT_EQ(all.callees(0).signature(), "float64(float64)");
  EXPECT_EQ(all.callees(1).name(), "gradwire::rpc::listed::twice");
  EXPECT_FALSE(all.callees(1).idempotent());
  EXPECT_EQ(all.callees(2).kind(), proto::CalleeEntry::METHOD);
  EXPECT_EQ(all.callees(2).name(), "gradwire::rpc::listed::Counter::add");
  EXPECT_EQ(all.callees(2).object_type(), "gradwire::rpc::listed::Counter");
  EXPECT_EQ(all.callees(3).kind(), proto::CalleeEntry::CONSTRUCTOR);
  EXPECT_EQ(all.callees(3).name(), "gradwire::rpc::listed::Counter");
  EXPECT_EQ(all.callees(3).object_type(), "gradwire::rpc::listed::Counter");
}

TEST(CalleeList, PagesHaveEveryEntryOnce) {
  proto::ListCallees request;
  request.set_prefix("gradwire::rpc::listed::");
  request.set_limit(1);
  std::vector<std::string> names;
  while (true) {
    const proto::CalleeList page = list(request);
    ASSERT_EQ(page.callees_size(), 1);
    names.push_back(absl::StrCat(page.callees(0).kind(), " ", page.callees(0).name()));
    if (!page.more()) break;
    request.set_after_kind(page.callees(0).kind());
    request.set_after_name(page.callees(0).name());
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "1 gradwire::rpc::listed::half", "1 gradwire::rpc::listed::twice",
                       "2 gradwire::rpc::listed::Counter::add", "3 gradwire::rpc::listed::Counter"}));
}

TEST(CalleeList, MalformedAndAbsurdRequestsAreHarmless) {
  EXPECT_EQ(serve_list_callees("\xff\xff\xff").status().code(), absl::StatusCode::kInvalidArgument);
  proto::ListCallees request;
  request.set_after_kind(0xffffffff);
  EXPECT_EQ(list(request).callees_size(), 0);
  request.set_after_kind(0);
  request.set_limit(0xffffffff);
  EXPECT_LE(list(request).callees_size(), 1024);
  request.set_prefix(std::string(5000, 'x'));
  EXPECT_EQ(serve_list_callees(request.SerializeAsString()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::rpc
