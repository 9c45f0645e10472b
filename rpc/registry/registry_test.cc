#include "gradwire/rpc/registry/registry.h"

#include "gradwire/base/stable_hash.h"
#include "gradwire/rpc/registry/registration.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace shapes {
int64_t area(int64_t a, int64_t b) { return a * b; }
GRADWIRE_RPC(area)
int64_t volume(int64_t a) { return a * a * a; }
int64_t volume(int64_t a, int64_t b) { return a * a * b; }
GRADWIRE_RPC_AS("cube", static_cast<int64_t (*)(int64_t)>(&volume))
GRADWIRE_RPC_AS("bar", static_cast<int64_t (*)(int64_t, int64_t)>(&volume))

struct Box {
  explicit Box(int64_t side) : side(side) {}
  int64_t get() const noexcept { return side; }
  int64_t side;
};
GRADWIRE_RPC_SERIAL_CLASS(Box, int64_t)
GRADWIRE_RPC_METHOD(Box, get)
}  // namespace shapes

namespace {

TEST(Registry, MacrosRegisterQualifiedNamesAndSignatures) {
  const Callee* area = Registry::instance().find(CalleeKind::kFunction, "gradwire::rpc::shapes::area");
  ASSERT_NE(area, nullptr);
  EXPECT_EQ(area->signature, "int64(int64,int64)");
  EXPECT_EQ(area->signature_hash, stable_hash(area->signature));
  EXPECT_EQ(callee_of_function<&shapes::area>, area);
  EXPECT_NE(Registry::instance().find(CalleeKind::kFunction, "cube"), nullptr);
  EXPECT_EQ(Registry::instance().find(CalleeKind::kFunction, "bar")->signature, "int64(int64,int64)");
}

TEST(Registry, ClassesAndMethodsKnowTheirObject) {
  const Callee* made = Registry::instance().find(CalleeKind::kConstructor, "gradwire::rpc::shapes::Box");
  ASSERT_NE(made, nullptr);
  EXPECT_TRUE(type_ops<shapes::Box>()->serial());
  EXPECT_EQ(type_ops<shapes::Box>()->encode, nullptr);
  const Callee* method = Registry::instance().find(CalleeKind::kMethod, "gradwire::rpc::shapes::Box::get");
  ASSERT_NE(method, nullptr);
  EXPECT_EQ(method->object_type, "gradwire::rpc::shapes::Box");
  EXPECT_EQ(Registry::instance().find(CalleeKind::kFunction, "gradwire::rpc::shapes::Box::get"), nullptr);
}

TEST(Registry, UnknownNameAsksForAlwayslinkAndListsSimilarNames) {
  const absl::Status status = Registry::instance().unknown(CalleeKind::kFunction, "other::area");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("\"other::area\""), std::string::npos) << status;
  EXPECT_NE(status.message().find("gradwire::rpc::shapes::area"), std::string::npos) << status;
  EXPECT_NE(status.message().find("alwayslink?"), std::string::npos) << status;
}

void serve_one(const std::shared_ptr<ServerCall>&) {}
void serve_other(const std::shared_ptr<ServerCall>& call) { call->fail(absl::UnknownError("other")); }

// This test must be the last one, because the registry of the process keeps the conflict.
TEST(RegistryConflict, SameNameForTwoCalleesIsNamed) {
  Callee callee;
  callee.name = "taken";
  callee.serve = &serve_one;
  Registry::instance().add(callee);
  Registry::instance().add(callee);
  EXPECT_TRUE(Registry::instance().conflicts().ok());
  callee.serve = &serve_other;
  Registry::instance().add(callee);
  const absl::Status conflicts = Registry::instance().conflicts();
  EXPECT_EQ(conflicts.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(conflicts.message().find("function taken"), std::string::npos) << conflicts;
}

}  // namespace
}  // namespace gradwire::rpc
