#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/gateway/server.h"
#include "gradwire/gateway/testing/client.h"
#include "gradwire/rpc/testing/group.h"

// TLS, and the standard services of gRPC.
namespace gradwire::gateway {
namespace {

using testing::Client;
using testing::Context;

// An authority, a certificate of it for 127.0.0.1, and an authority that nobody trusts. Made by the openssl
// program.
struct Certificates {
  Certificates() : folder(absl::StrCat(::testing::TempDir(), "/gateway_tls")) {
    const std::string script = absl::StrCat(
        "mkdir -p ", folder, " && cd ", folder,
        " && exec >/dev/null 2>&1 &&"
        " authority() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        " -subj /CN=$1 -keyout $1.key -out $1.pem; } &&"
        " authority authority && authority stranger &&"
        " openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=server -keyout "
        "server.key"
        " -out server.csr && echo subjectAltName=IP:127.0.0.1 >server.ext &&"
        " openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2"
        " -extfile server.ext -out server.pem");
    EXPECT_EQ(std::system(script.c_str()), 0);
  }
  std::string path(const std::string& name) const { return absl::StrCat(folder, "/", name); }
  std::string text(const std::string& name) const {
    std::ifstream file(path(name));
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }
  const std::string folder;
};

grpc::Status describe(int port, const grpc::SslCredentialsOptions& options) {
  const auto stub = v1::Gateway::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::SslCredentials(options)));
  Context context;
  v1::Info info;
  return stub->GetInfo(&context, {}, &info);
}

TEST(GatewayTls, OnlyTheRightCertificatesAreAccepted) {
  const Certificates certificates;
  rpc::testing::Group group(1);
  Options options;
  options.address = "0.0.0.0:0";
  options.certificate_file = certificates.path("server.pem");
  options.key_file = certificates.path("server.key");
  grpc::SslCredentialsOptions trusting;
  trusting.pem_root_certs = certificates.text("authority.pem");
  grpc::SslCredentialsOptions wrong;
  wrong.pem_root_certs = certificates.text("stranger.pem");
  {
    Server server(group[0], options);
    EXPECT_TRUE(describe(server.port(), trusting).ok());
    EXPECT_FALSE(describe(server.port(), wrong).ok());
  }
  options.client_authority_file = certificates.path("authority.pem");
  Server server(group[0], options);
  EXPECT_FALSE(describe(server.port(), trusting).ok()) << "the client has no certificate";
  grpc::SslCredentialsOptions known = trusting;
  known.pem_cert_chain = certificates.text("server.pem");
  known.pem_private_key = certificates.text("server.key");
  EXPECT_TRUE(describe(server.port(), known).ok());
  options.certificate_file = "/there/is/no/such/file";
  EXPECT_THROW(Server(group[0], options), Error);
}

TEST(GatewayTls, AKeyThatOthersCanReadIsRefused) {
  const Certificates certificates;
  rpc::testing::Group group(1);
  Options options;
  options.certificate_file = certificates.path("server.pem");
  options.key_file = certificates.path("server.key");
  ASSERT_EQ(chmod(options.key_file.c_str(), 0644), 0);
  const absl::Status refused = status_of([&] { Server(group[0], options); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(refused.message().find(options.key_file), std::string::npos) << refused;
}

// Calls a method whose messages this program does not have. Returns the serialised answer.
std::string call_raw(Client& client, const std::string& method, const std::string& request) {
  grpc::GenericStub stub(client.channel);
  Context context;
  grpc::Slice slice(request);
  grpc::ByteBuffer bytes(&slice, 1);
  grpc::ByteBuffer answer;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &bytes, &answer,
                 [&ended](grpc::Status status) { ended.set_value(std::move(status)); });
  if (!ended.get_future().get().ok()) return "failed";
  grpc::Slice whole;
  return answer.DumpToSingleSlice(&whole).ok()
             ? std::string(reinterpret_cast<const char*>(whole.begin()), whole.size())
             : "failed";
}

TEST(GatewayServices, HealthIsServed) {
  rpc::testing::Group group(1);
  Server server(group[0]);
  Client client(server.port());
  // HealthCheckRequest{service 1}, and HealthCheckResponse{status 1: SERVING}.
  const std::string name = "gradwire.gateway.v1.Gateway";
  EXPECT_EQ(call_raw(client, "/grpc.health.v1.Health/Check",
                     absl::StrCat("\x0a", std::string(1, static_cast<char>(name.size())), name)),
            "\x08\x01");
}

TEST(GatewayServices, ReflectionNamesTheService) {
  rpc::testing::Group group(1);
  Server server(group[0]);
  Client client(server.port());
  // A stream, of which one message in each direction is enough: ServerReflectionRequest{list_services ""}.
  EXPECT_NE(call_raw(client, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                     std::string("\x3a\x00", 2))
                .find("gradwire.gateway.v1.Gateway"),
            std::string::npos);
}

}  // namespace
}  // namespace gradwire::gateway
