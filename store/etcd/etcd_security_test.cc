// Tests of an EtcdStore and an etcd that authenticate one another by certificates and passwords.

#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <thread>

#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/etcd/etcd_process.h"
#include "gradwire/store/etcd_store.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kOpenTimeout = absl::Seconds(60);

// A certificate authority, a server certificate for localhost and a client certificate, made by the openssl
// program.
class Certificates {
 public:
  Certificates() {
    const char* const base = std::getenv("TEST_TMPDIR");
    folder_ = absl::StrCat(base != nullptr ? base : "/tmp", "/certificates-", absl::Hex(random_id()));
    const std::string command = absl::StrCat(
        "mkdir -p ", folder_, " && cd ", folder_,
        " && exec >log 2>&1 && authority() {"
        " openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        " -subj /CN=$1 -keyout $1.key -out $1.pem; } && signed() {"
        " openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=$1 -keyout $1.key "
        "-out $1.csr &&"
        " echo \"subjectAltName=DNS:localhost,IP:127.0.0.1\" >$1.ext &&"
        " openssl x509 -req -in $1.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 "
        "-extfile $1.ext"
        " -out $1.pem; } && authority authority && authority stranger && signed server && signed client");
    EXPECT_EQ(std::system(command.c_str()), 0) << "see " << folder_ << "/log";
  }
  std::string file(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

 private:
  std::string folder_;
};

std::vector<std::string> tls_flags(const Certificates& certificates) {
  return {"--cert-file=" + certificates.file("server.pem"), "--key-file=" + certificates.file("server.key"),
          "--trusted-ca-file=" + certificates.file("authority.pem"), "--client-cert-auth=true"};
}

absl::Status open_and_use(const std::string& endpoint, EtcdSecurity security,
                          absl::Duration timeout = absl::Seconds(6)) {
  const auto store =
      EtcdStore::open({endpoint}, "job", {.timeout = timeout, .security = std::move(security)});
  if (!store.ok()) return store.status();
  absl::Status status = (*store)->try_set("key", "value");
  if (!status.ok()) return status;
  std::string got;
  std::thread getter([&] { got = (*store)->get("other"); });
  status = (*store)->try_set("other", "here");
  getter.join();
  EXPECT_EQ(got, "here");
  return status;
}

TEST(EtcdTls, ClientAndServerAuthenticateOneAnother) {
  GRADWIRE_NEED_ETCD();
  const Certificates certificates;
  EtcdProcess etcd(tls_flags(certificates), "https");
  const EtcdSecurity security = {.authority_file = certificates.file("authority.pem"),
                                 .certificate_file = certificates.file("client.pem"),
                                 .key_file = certificates.file("client.key")};
  const absl::Status status = open_and_use(etcd.endpoint(), security, kOpenTimeout);
  EXPECT_TRUE(status.ok()) << status;
  // The endpoint may omit the scheme.
  EXPECT_TRUE(open_and_use(absl::StrCat("localhost:", etcd.port()), security, kOpenTimeout).ok());
}

TEST(EtcdTls, StrangersAreRefused) {
  GRADWIRE_NEED_ETCD();
  const Certificates certificates;
  EtcdProcess etcd(tls_flags(certificates), "https");
  const std::string address = absl::StrCat("localhost:", etcd.port());
  const EtcdSecurity wrong_authority = {.authority_file = certificates.file("stranger.pem"),
                                        .certificate_file = certificates.file("client.pem"),
                                        .key_file = certificates.file("client.key")};
  const EtcdSecurity no_certificate = {.authority_file = certificates.file("authority.pem")};
  const EtcdSecurity wrong_certificate = {.authority_file = certificates.file("authority.pem"),
                                          .certificate_file = certificates.file("stranger.pem"),
                                          .key_file = certificates.file("stranger.key")};
  // Each of them is refused only at its timeout, so they try at the same time.
  std::vector<std::thread> strangers;
  for (const EtcdSecurity& security : {wrong_authority, no_certificate, wrong_certificate, EtcdSecurity{}}) {
    strangers.emplace_back([&address, security] {
      const absl::Status status = open_and_use(address, security);
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    });
  }
  for (std::thread& stranger : strangers) stranger.join();
}

TEST(EtcdTls, PlainEtcdIsUnavailableWithTls) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  const absl::Status status = open_and_use(absl::StrCat("localhost:", etcd.port()), {.tls = true});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

template <class Stub, class Request, class Response>
void ask(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
         const Request& request) {
  grpc::ClientContext context;
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

class EtcdPassword : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEED_ETCD();
    // A cheap hash: the default one takes 100 ms per password.
    etcd_ = std::make_unique<EtcdProcess>(std::vector<std::string>{"--bcrypt-cost=4"});
    using Auth = etcdserverpb::Auth::Stub;
    Auth auth(etcd_->channel());
    for (const auto& [user, password] :
         {std::pair("root", "root's"), {"worker", "secret"}, {"guest", "welcome"}}) {
      etcdserverpb::AuthUserAddRequest add;
      add.set_name(user);
      add.set_password(password);
      ask(auth, &Auth::UserAdd, add);
    }
    etcdserverpb::AuthRoleAddRequest add;
    add.set_name("jobs");
    ask(auth, &Auth::RoleAdd, add);
    etcdserverpb::AuthRoleGrantPermissionRequest permission;
    permission.set_name("jobs");
    permission.mutable_perm()->set_permtype(etcdserverpb::Permission::READWRITE);
    permission.mutable_perm()->set_key("job");
    permission.mutable_perm()->set_range_end("joc");
    ask(auth, &Auth::RoleGrantPermission, permission);
    etcdserverpb::AuthUserGrantRoleRequest role;
    role.set_user("worker");
    role.set_role("jobs");
    ask(auth, &Auth::UserGrantRole, role);
    role.set_user("root");
    role.set_role("root");
    ask(auth, &Auth::UserGrantRole, role);
    ask(auth, &Auth::AuthEnable, etcdserverpb::AuthEnableRequest());
  }

  std::unique_ptr<EtcdProcess> etcd_;
};

TEST_F(EtcdPassword, UserWithTheRightPasswordIsServed) {
  const absl::Status status =
      open_and_use(etcd_->endpoint(), {.user = "worker", .password = "secret"}, kOpenTimeout);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(EtcdPassword, WrongPasswordNamesUserAndEndpointAtOnce) {
  const absl::Time start = absl::Now();
  const absl::Status status =
      open_and_use(etcd_->endpoint(), {.user = "worker", .password = "sekret"}, kOpenTimeout);
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("localhost:", etcd_->port())));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("sekret")));
  const absl::Status none = open_and_use(etcd_->endpoint(), {}, kOpenTimeout);
  EXPECT_TRUE(absl::IsUnauthenticated(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("security.user"));
  EXPECT_LT(absl::Now() - start, kOpenTimeout / 2);
}

TEST_F(EtcdPassword, UserWithoutTheRoleIsDeniedWithAdvice) {
  for (const absl::Status& status :
       {open_and_use(etcd_->endpoint(), {.user = "guest", .password = "welcome"}, kOpenTimeout),
        EtcdStore::open({etcd_->endpoint()}, "elsewhere",
                        {.security = {.user = "worker", .password = "secret"}})
            .status()}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("grant"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("localhost:", etcd_->port())));
  }
}

TEST_F(EtcdPassword, TokenIsRenewedWhenEtcdHasForgottenIt) {
  const EtcdStoreOptions options = {.timeout = kOpenTimeout,
                                    .security = {.user = "worker", .password = "secret"}};
  EtcdStore store({etcd_->endpoint()}, "job", options), other({etcd_->endpoint()}, "job", options);
  store.set("key", "one");
  std::string seen;
  std::thread watcher([&] { seen = store.watch("key", "one"); });
  etcd_->kill();
  etcd_->start();
  EXPECT_EQ(other.add("counter", 1), 1);
  etcd_->kill();
  etcd_->start();
  other.set("key", "two");
  watcher.join();
  EXPECT_EQ(seen, "two");
  EXPECT_EQ(store.add("counter", 1), 2);
}

TEST(EtcdNoPassword, UnusedPasswordIsNotAnError) {
  GRADWIRE_NEED_ETCD();
  EtcdProcess etcd;
  const absl::Status status =
      open_and_use(etcd.endpoint(), {.user = "worker", .password = "secret"}, kOpenTimeout);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace gradwire::store
