// Connections that are led to a port of another kind: each end has the right token, or a certificate of the
// job.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/security/make_credentials.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/security/protection.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire {
namespace {

using transport::RecordingListener;

class Purposes : public testing::TestWithParam<Protection> {
 protected:
  transport::TcpOptions options(const std::string& purpose) const {
    transport::TcpOptions options;
    options.bind_address = "127.0.0.1";
    options.credentials = *security::make_credentials(member(GetParam()));
    options.purpose = purpose;
    return options;
  }
};

TEST_P(Purposes, StoreClientIsRefusedByAWorker) {
  for (const char* purpose : {"rpc", "group", "store/stripe"}) {
    auto worker = transport::make_tcp_transport(options(purpose));
    int accepted = 0;
    const auto address = worker->listen([&](const std::shared_ptr<transport::Connection>&) {
      ++accepted;
      return std::make_shared<RecordingListener>();
    });
    ASSERT_TRUE(address.ok()) << address.status();
    int port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(address->substr(address->rfind(':') + 1), &port));
    const auto refused = open_store(port, member(GetParam()), absl::Seconds(5));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << refused.status();
    worker->shutdown();
    EXPECT_EQ(accepted, 0);
  }
}

TEST_P(Purposes, WorkersAreRefusedByAStore) {
  store::TcpStore store("127.0.0.1", 0, {.is_master = true, .security = member(GetParam())});
  for (const char* purpose : {"rpc", "group", "", "store/stripe"}) {
    auto worker = transport::make_tcp_transport(options(purpose));
    const auto listener = std::make_shared<RecordingListener>();
    const auto connection =
        worker->connect(absl::StrCat("127.0.0.1:", store.port()), listener, absl::Seconds(20));
    ASSERT_TRUE(connection.ok()) << connection.status();
    (void)(*connection)->send({"first", {}});
    EXPECT_FALSE(listener->wait_closed().ok()) << purpose;
    EXPECT_EQ(listener->message_count(), 0u);
    worker->shutdown();
  }
  EXPECT_EQ(store.num_keys(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Purposes, testing::Values(Protection::kToken, Protection::kCertificates),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace gradwire
