#include "gradwire/store/init/multicast_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/free_port.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/store/init/init_method.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::store {
namespace {

using ::testing::HasSubstr;

class MulticastStore : public ::testing::TestWithParam<const char*> {
 protected:
  const int port_ = free_port();
  std::string method() const { return absl::StrCat("tcp://", GetParam(), ":", port_); }
  Endpoint group() const {
    std::string host = GetParam();
    if (host.front() == '[') host = host.substr(1, host.size() - 2);
    return {host, port_};
  }
  absl::StatusOr<Rendezvous> join(int world_size, const std::string& group_name = "rpc") const {
    return rendezvous(
        method(), kUnknownRank, world_size,
        {.timeout = absl::Seconds(60), .group_name = group_name, .security = {.insecure = true}});
  }
};

TEST_P(MulticastStore, OfAFormedGroupIsFoundWithoutDisturbingIt) {
  auto other = std::async(std::launch::async, [&] { return join(2); });
  const absl::StatusOr<Rendezvous> one = join(2);
  const absl::StatusOr<Rendezvous> two = other.get();
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  one->store->set("key", "value");
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<Endpoint> found = find_multicast_store(group(), "rpc", absl::Seconds(60));
    ASSERT_TRUE(found.ok()) << found.status();
    const auto store = TcpStore::open(found->host, found->port,
                                      {.timeout = absl::Seconds(60), .security = {.insecure = true}});
    ASSERT_TRUE(store.ok()) << store.status();
  }
  EXPECT_EQ(two->store->get("key"), "value");
}

TEST_P(MulticastStore, OfAGroupThatFormsIsMissing) {
  auto first = std::async(std::launch::async, [&] { return join(2); });
  absl::Status status;
  // The first process has to open its socket.
  EXPECT_TRUE(eventually([&] {
    status = find_multicast_store(group(), "rpc", absl::Milliseconds(300)).status();
    return status.message().find("1 process has answered") != std::string::npos;
  }));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("waits until all of its processes have arrived"));
  // The questions have not counted as a second process.
  const absl::StatusOr<Rendezvous> second = join(2);
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(first.get().ok());
}

TEST_P(MulticastStore, WithoutAJobNobodyAnswers) {
  auto other = std::async(std::launch::async, [&] { return join(0, "other"); });
  const absl::Status status = find_multicast_store(group(), "rpc", absl::Milliseconds(300)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no process of the job has answered"));
  EXPECT_TRUE(other.get().ok());
}

INSTANTIATE_TEST_SUITE_P(Families, MulticastStore, ::testing::Values("239.255.77.4", "[ff15::4757:4]"),
                         [](const auto& info) { return info.index == 0 ? "V4" : "V6"; });

}  // namespace
}  // namespace gradwire::store
