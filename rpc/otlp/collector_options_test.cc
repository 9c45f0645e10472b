#include "gradwire/rpc/otlp/collector_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

EnvironmentReader reader(const Variables& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
}

absl::StatusOr<CollectorOptions> resolved(const OtlpOptions& options, const Variables& variables = {}) {
  return resolve(options, reader(variables));
}

std::string message_of(const OtlpOptions& options, const Variables& variables = {}) {
  return std::string(resolved(options, variables).status().message());
}

std::string write(const std::string& name, const std::string& text, mode_t mode) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::trunc) << text;
  chmod(path.c_str(), mode);
  return path;
}

TEST(CollectorOptions, DefaultsAreThoseOfOpenTelemetry) {
  const auto options = resolved({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->address, "127.0.0.1:4317");
  EXPECT_FALSE(options->tls);
  EXPECT_EQ(options->interval, absl::Seconds(10));
  EXPECT_EQ(options->timeout, absl::Seconds(10));
  EXPECT_TRUE(options->headers.empty());
  EXPECT_EQ(options->attributes.at("service.name"), "gradwire");
  EXPECT_NE(options->attributes.at("host.name"), "");
}

TEST(CollectorOptions, EndpointsAreRead) {
  const std::map<std::string, std::string> addresses = {
      {"http://localhost:1", "localhost:1"},   {"http://127.0.0.1", "127.0.0.1:4317"},
      {"http://[::1]", "[::1]:4317"},          {"http://[::1]:65535/", "[::1]:65535"},
      {"https://collector", "collector:4317"}, {"https://collector:443/", "collector:443"}};
  for (const auto& [endpoint, address] : addresses) {
    const auto options = resolved({.endpoint = endpoint});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->address, address);
    EXPECT_EQ(options->tls, endpoint[4] == 's');
  }
}

TEST(CollectorOptions, MalformedEndpointsAreRefused) {
  for (const char* endpoint : {"collector", "collector:4317", "ftp://collector", "http://", "https://:4317",
                               "https://a:0", "https://a:65536", "https://a:b", "https://a/v1/metrics",
                               "https://a b", "http://::1", "https://", "https:///"}) {
    const auto options = resolved({.endpoint = endpoint});
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << endpoint;
    EXPECT_THAT(message_of({.endpoint = endpoint}), HasSubstr("https://HOST:PORT")) << endpoint;
  }
}

TEST(CollectorOptions, PasswordInAnEndpointIsNotShown) {
  const std::string message = message_of({.endpoint = "https://user:hidden@collector:4317"});
  EXPECT_THAT(message, ::testing::Not(HasSubstr("hidden")));
  EXPECT_THAT(message, HasSubstr("'@'"));
  EXPECT_THAT(message_of({.endpoint = "https://hidden@collector:4317"}), ::testing::Not(HasSubstr("hidden")));
}

TEST(CollectorOptions, PlaintextToAnotherHostNeedsConsent) {
  const OtlpOptions options = {.endpoint = "http://collector:4317"};
  EXPECT_EQ(resolved(options).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(options), HasSubstr("OTEL_EXPORTER_OTLP_INSECURE"));
  EXPECT_TRUE(resolved(options, {{"OTEL_EXPORTER_OTLP_INSECURE", "true"}}).ok());
  EXPECT_FALSE(resolved(options, {{"OTEL_EXPORTER_OTLP_INSECURE", "1"}}).ok());
  EXPECT_TRUE(resolved({.endpoint = options.endpoint, .insecure = true}).ok());
  // Whatever a name seems to say.
  EXPECT_FALSE(resolved({.endpoint = "http://127.0.0.1.example.org"}).ok());
  EXPECT_FALSE(resolved({.endpoint = "http://localhost.example.org"}).ok());
}

TEST(CollectorOptions, EnvironmentFillsWhatIsNotSet) {
  const Variables variables = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:1"},
                               {"OTEL_METRIC_EXPORT_INTERVAL", "2500"},
                               {"OTEL_EXPORTER_OTLP_TIMEOUT", "700"},
                               {"OTEL_EXPORTER_OTLP_HEADERS", "API-Key=a%2Cb%3D, x = y "},
                               {"OTEL_RESOURCE_ATTRIBUTES", "zone=b%20c,service.name=mine,host.name=h"}};
  const auto options = resolved({}, variables);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->address, "a:1");
  EXPECT_EQ(options->interval, absl::Milliseconds(2'500));
  EXPECT_EQ(options->timeout, absl::Milliseconds(700));
  ASSERT_EQ(options->headers.size(), 2u);
  EXPECT_EQ(options->headers[0].first, "api-key");
  EXPECT_EQ(options->headers[0].second.reveal(), "a,b=");
  EXPECT_EQ(options->headers[1].first, "x");
  EXPECT_EQ(options->headers[1].second.reveal(), "y");
  EXPECT_EQ(options->attributes, (Variables{{"zone", "b c"}, {"service.name", "mine"}, {"host.name", "h"}}));

  const auto given = resolved({.endpoint = "http://127.0.0.1:2",
                               .interval = absl::Seconds(1),
                               .timeout = absl::Seconds(2),
                               .insecure = true,
                               .attributes = {{"zone", "d"}}},
                              variables);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->address, "127.0.0.1:2");
  EXPECT_EQ(given->interval, absl::Seconds(1));
  EXPECT_EQ(given->timeout, absl::Seconds(2));
  EXPECT_EQ(given->attributes.at("zone"), "d");
}

TEST(CollectorOptions, NameOfTheServiceHasAnOrder) {
  Variables variables = {{"TORCHELASTIC_RUN_ID", "job7"}};
  const auto name = [&](const OtlpOptions& options) {
    return resolved(options, variables)->attributes.at("service.name");
  };
  EXPECT_EQ(name({}), "job7");
  variables["OTEL_RESOURCE_ATTRIBUTES"] = "service.name=b";
  EXPECT_EQ(name({}), "b");
  variables["OTEL_SERVICE_NAME"] = "c";
  EXPECT_EQ(name({}), "c");
  EXPECT_EQ(name({.attributes = {{"service.name", "d"}}}), "d");
  EXPECT_EQ(name({.service_name = "e", .attributes = {{"service.name", "d"}}}), "e");
}

// gRPC ends the process when it gets a header that HTTP/2 does not allow.
TEST(CollectorOptions, HeadersThatGrpcDoesNotAcceptAreRefusedWithoutTheirValues) {
  for (const char* text :
       {"a b=secret", ":path=secret", "grpc-timeout=secret", "key-bin=secret", "k=sec%0Aret",
        "k=secret%C3%A9", "secret", "=secret", "k=secret%2", "k=%zzsecret", "\xff=secret"}) {
    const auto options = resolved({}, {{"OTEL_EXPORTER_OTLP_HEADERS", text}});
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(options.status().message()), ::testing::Not(HasSubstr("secret"))) << text;
    EXPECT_THAT(std::string(options.status().message()), HasSubstr("OTEL_EXPORTER_OTLP_HEADERS")) << text;
  }
}

TEST(CollectorOptions, HeadersComeFromAFileThatOnlyItsOwnerReads) {
  const std::string path = write("headers", "api-key=a,b\n\nx=y\n", 0600);
  // Another user of this host could listen at the port.
  EXPECT_EQ(resolved({.headers_file = path}).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto options =
      resolved({.endpoint = "https://a", .headers_file = path}, {{"OTEL_EXPORTER_OTLP_HEADERS", "z=z"}});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->headers.size(), 2u);
  EXPECT_EQ(options->headers[0].second.reveal(), "a,b");
  EXPECT_EQ(options->headers[1].first, "x");
  chmod(path.c_str(), 0644);
  EXPECT_EQ(resolved({.headers_file = path}).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(resolved({.headers_file = "/there/is/none"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(CollectorOptions, CertificatesNeedTls) {
  const std::string path = write("authority.pem", "PEM", 0644);
  const auto options = resolved({.endpoint = "https://a", .certificate_file = path});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->authorities, "PEM");
  EXPECT_EQ(resolved({.endpoint = "http://127.0.0.1", .certificate_file = path}).status().code(),
            absl::StatusCode::kInvalidArgument);
  // The variable may be meant for another exporter.
  EXPECT_TRUE(resolved({}, {{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/there/is/none"}}).ok());
  EXPECT_EQ(resolved({.endpoint = "https://a"}, {{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/there/is/none"}})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(resolved({.endpoint = "https://a", .certificate_file = write("empty", "", 0644)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CollectorOptions, LimitsHold) {
  for (const absl::Duration time : {absl::ZeroDuration(), absl::Milliseconds(9), -absl::Seconds(1),
                                    absl::Hours(2), absl::InfiniteDuration()}) {
    EXPECT_THAT(message_of({.interval = time}), HasSubstr("OtlpOptions::interval")) << time;
    EXPECT_THAT(message_of({.timeout = time}), HasSubstr("OtlpOptions::timeout")) << time;
  }
  EXPECT_THAT(message_of({}, {{"OTEL_METRIC_EXPORT_INTERVAL", "10s"}}), HasSubstr("10s"));
  EXPECT_THAT(message_of({}, {{"OTEL_EXPORTER_OTLP_TIMEOUT", "-1"}}),
              HasSubstr("OTEL_EXPORTER_OTLP_TIMEOUT"));
  std::string many;
  for (int i = 0; i < 65; ++i) absl::StrAppend(&many, "k", i, "=v,");
  EXPECT_THAT(message_of({}, {{"OTEL_RESOURCE_ATTRIBUTES", many}}), HasSubstr("at most 64"));
  EXPECT_THAT(message_of({.attributes = {{"a", "\xff"}}}), HasSubstr("UTF-8"));
  EXPECT_THAT(message_of({.attributes = {{"", "a"}}}), HasSubstr("1 to 255"));
  EXPECT_THAT(message_of({.service_name = std::string(5'000, 'a')}), HasSubstr("4096"));
}

}  // namespace
}  // namespace gradwire::rpc
