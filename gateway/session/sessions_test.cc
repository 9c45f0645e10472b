#include "gradwire/gateway/session/sessions.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/gateway/limits/limits.h"
#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

struct Fixture {
  absl::Time now = absl::UnixEpoch();
  Sessions sessions{2, absl::Seconds(10), [this] { return now; }};
};

// A reference that counts itself, in place of one to a worker.
std::shared_ptr<rpc::RRefHandle> counted(const std::shared_ptr<int>& owner) {
  return std::shared_ptr<rpc::RRefHandle>(owner, nullptr);
}

TEST(GatewaySessions, IdsAreRandomAndLong) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = random_id();
    EXPECT_EQ(id.size(), 16u);
    EXPECT_TRUE(ids.insert(id).second);
  }
}

TEST(GatewaySessions, AHandleIsKnownOnlyInItsSession) {
  Fixture f;
  auto value = std::make_shared<int>(1);
  const auto one = f.sessions.open(nullptr);
  const auto two = f.sessions.open(nullptr);
  const std::string handle = *one->add(counted(value));
  EXPECT_TRUE(one->find(handle).ok());
  EXPECT_EQ(two->find(handle).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(one->find("").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(one->release({handle, handle, "x"}), 1u);
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_EQ(one->find(handle).status().code(), absl::StatusCode::kNotFound);
}

TEST(GatewaySessions, ItsEndReleasesAllObjects) {
  Fixture f;
  auto value = std::make_shared<int>(1);
  const auto session = f.sessions.open(nullptr);
  ASSERT_TRUE(session->add(counted(value)).ok());
  ASSERT_TRUE(session->add(counted(value)).ok());
  EXPECT_EQ(f.sessions.objects(), 2u);
  f.sessions.end(session->id());
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_EQ(f.sessions.size(), 0u);
  EXPECT_EQ(session->add(counted(value)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(f.sessions.use(session->id()).status().code(), absl::StatusCode::kNotFound);
}

TEST(GatewaySessions, TheNumberOfObjectsIsLimited) {
  Fixture f;
  const auto session = f.sessions.open(nullptr);
  auto value = std::make_shared<int>(1);
  EXPECT_TRUE(session->add(counted(value)).ok());
  EXPECT_TRUE(session->has_room().ok());
  EXPECT_TRUE(session->add(counted(value)).ok());
  EXPECT_EQ(reached_limit(session->has_room()).option, "max_objects_per_session");
  EXPECT_EQ(reached_limit(session->add(counted(value)).status()).limit, "max_objects_per_session");
  EXPECT_EQ(value.use_count(), 3);
}

TEST(GatewaySessions, OnlyIdleSessionsExpire) {
  Fixture f;
  std::vector<absl::Status> ends;
  const auto idle = f.sessions.open([&ends](absl::Status status) { ends.push_back(std::move(status)); });
  const auto busy = f.sessions.open(nullptr);
  const auto touched = f.sessions.open(nullptr);
  absl::StatusOr<SessionUse> use = f.sessions.use(busy->id());
  ASSERT_TRUE(use.ok());
  f.now += absl::Seconds(9);
  f.sessions.touch(*touched);
  f.sessions.expire();
  EXPECT_EQ(f.sessions.size(), 3u);
  f.now += absl::Seconds(1);
  f.sessions.expire();
  EXPECT_EQ(f.sessions.size(), 2u);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kDeadlineExceeded);
  use = absl::CancelledError();
  f.now += absl::Seconds(9);
  f.sessions.expire();
  EXPECT_EQ(f.sessions.size(), 1u);
  f.sessions.end_all(absl::UnavailableError("stop"));
  EXPECT_EQ(f.sessions.size(), 0u);
}

}  // namespace
}  // namespace gradwire::gateway
