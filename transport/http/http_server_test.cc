#include "gradwire/transport/http/http_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/transport/http/testing/http_client.h"
#include "gradwire/transport/process_counts.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using testing::connect_to;
using testing::http_get;
using testing::parse_answer;
using testing::read_all;
using testing::send_text;

// A folder with a short path, as the address of a socket needs it.
struct Folder {
  Folder() { EXPECT_NE(mkdtemp(path), nullptr); }
  ~Folder() { rmdir(path); }
  char path[32] = "/tmp/gradwire_http_XXXXXX";
};

std::map<std::string, HttpPage> pages() {
  return {{"/healthz", {.make = [] { return std::string("ok\n"); }}},
          {"/metrics", {.type = std::string(kMetricsType), .make = [] { return std::string("a 1\n"); }}},
          {"/throws", {.make = []() -> std::string { throw std::runtime_error("no"); }}},
          {"/large", {.make = [] { return std::string(32 << 20, 'x'); }}}};
}

std::unique_ptr<HttpServer> start(HttpOptions options = {}) {
  if (options.address.empty()) options.address = "127.0.0.1:0";
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::start(options, pages());
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HttpServer, ServesItsPages) {
  const auto server = start();
  const auto answer = http_get(server->address(), "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "a 1\n");
  EXPECT_TRUE(absl::StrContains(answer.head, "Content-Type: text/plain; version=0.0.4; charset=utf-8"));
  EXPECT_TRUE(absl::StrContains(answer.head, "Connection: close"));
  EXPECT_EQ(http_get(server->address(), "/healthz").body, "ok\n");
  EXPECT_EQ(http_get(server->address(), "/healthz?a=b").body, "ok\n");
  const auto head = http_get(server->address(), "/healthz", "127.0.0.1", "HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
}

TEST(HttpServer, RefusesEverythingElse) {
  const auto server = start();
  EXPECT_EQ(http_get(server->address(), "/").status, 404);
  EXPECT_EQ(http_get(server->address(), "/metrics/../healthz").status, 404);
  EXPECT_EQ(http_get(server->address(), "/metrics", "127.0.0.1", "POST").status, 405);
  EXPECT_EQ(http_get(server->address(), "/metrics", "127.0.0.1", "DELETE").status, 405);
  EXPECT_EQ(http_get(server->address(), "/throws").status, 500);
  EXPECT_EQ(http_get(server->address(), "/metrics").status, 200);
}

TEST(HttpServer, LoopbackServerRefusesForeignNames) {
  const auto server = start();
  for (const char* host : {"localhost:9", "127.0.0.1", "[::1]:80"})
    EXPECT_EQ(http_get(server->address(), "/metrics", host).status, 200) << host;
  for (const char* host : {"evil.example", "127.0.0.1.evil.example:80", "", "localhost.evil"})
    EXPECT_EQ(http_get(server->address(), "/metrics", host).status, 403) << host;
}

TEST(HttpServer, ServerOfOneHostRefusesAllOthers) {
  const auto server = start({.only_own_host = true});
  for (const char* host : {"localhost:9", "LOCALHOST", "127.0.0.2:9", "127.0.0.1", "[::1]:80", "[::1]"})
    EXPECT_EQ(http_get(server->address(), "/metrics", host).status, 200) << host;
  for (const char* host : {"evil.example", "127.evil.example", "10.0.0.1", "[fe80::1]:80", "[::1", ""})
    EXPECT_EQ(http_get(server->address(), "/metrics", host).status, 403) << host;
  const Descriptor nameless = connect_to(server->address());
  send_text(nameless, "GET /metrics HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(absl::StrContains(read_all(nameless), " 403 "));
}

TEST(HttpServer, ServerForOtherHostsAcceptsItsNameAndAddresses) {
  const auto server = start({.address = "0.0.0.0:0", .insecure = true, .only_own_host = true});
  const std::string at = absl::StrCat("127.0.0.1", server->address().substr(server->address().rfind(':')));
  for (const char* host : {"10.0.0.1:80", "localhost", "0.0.0.0"})
    EXPECT_EQ(http_get(at, "/metrics", host).status, 200) << host;
  for (const char* host : {"evil.example", ""}) EXPECT_EQ(http_get(at, "/metrics", host).status, 403) << host;
}

TEST(HttpServer, PagesMayNeedAToken) {
  const std::string token = "0123456789abcdef";
  std::map<std::string, HttpPage> guarded = pages();
  guarded["/metrics"].token = guarded["/healthz"].token = security::Secret(token);
  guarded["/healthz"].token_in = HttpPage::TokenIn::kHeader;
  const auto server = *HttpServer::start(
      {.address = "127.0.0.1:0", .headers = {{"Referrer-Policy", "no-referrer"}}}, std::move(guarded));
  EXPECT_EQ(http_get(server->address(), "/metrics?token=0123456789abcdef").body, "a 1\n");
  for (const char* query :
       {"", "?token", "?token=", "?token=0123456789abcdeF", "?token=0123456789abcde",
        "?token=0123456789abcdef0", "?tokens=0123456789abcdef", "?token=x&token=0123456789abcdef"}) {
    const auto refused = http_get(server->address(), absl::StrCat("/metrics", query));
    EXPECT_EQ(refused.status, 403) << query;
    EXPECT_TRUE(absl::StrContains(refused.head, "Referrer-Policy: no-referrer")) << refused.head;
    EXPECT_FALSE(absl::StrContains(refused.body, "a 1"));
  }
  // The page whose token is a header does not take it from the address, and the other way round.
  EXPECT_EQ(http_get(server->address(), "/healthz?token=0123456789abcdef").status, 403);
  const std::string header = absl::StrCat("localhost\r\n", kTokenHeader, ": ", token);
  EXPECT_EQ(http_get(server->address(), "/healthz", header).status, 200);
  EXPECT_EQ(http_get(server->address(), "/healthz", header + "0").status, 403);
  EXPECT_EQ(http_get(server->address(), "/metrics", header).status, 403);
}

TEST(HttpServer, UnixSocketBelongsToItsUser) {
  const Folder folder;
  const std::string path = absl::StrCat(folder.path, "/a.sock");
  auto server = start({.address = absl::StrCat("unix:", path)});
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(http_get(server->address(), "/metrics").body, "a 1\n");
  server = nullptr;
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST(HttpServer, ServersOfAFolderHaveNamesOfTheirOwn) {
  const Folder folder;
  const HttpOptions options = {.address = absl::StrCat("unix:", folder.path, "/")};
  const auto one = start(options);
  const auto two = start(options);
  EXPECT_NE(one->address(), two->address());
  EXPECT_EQ(http_get(one->address(), "/metrics").status, 200);
  EXPECT_EQ(http_get(two->address(), "/metrics").status, 200);
}

TEST(HttpServer, OtherHostsNeedConsent) {
  HttpOptions options = {.address = "0.0.0.0:0", .consent = "metrics_insecure"};
  const absl::Status refused = HttpServer::start(options, pages()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "metrics_insecure")) << refused;
  options.insecure = true;
  const auto server = start(options);
  const std::string port = server->address().substr(server->address().rfind(':'));
  EXPECT_EQ(http_get(absl::StrCat("127.0.0.1", port), "/metrics", "any.example").status, 200);
}

TEST(HttpServer, WrongAddressesAreExplained) {
  for (const char* address :
       {"", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":80", "::1:80", "[::1:80", "unix:"}) {
    EXPECT_EQ(HttpServer::start({.address = address}, pages()).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(HttpServer::start({.address = "unix:/nonexistent/folder/a"}, pages()).status().code(),
            absl::StatusCode::kUnavailable);
  const auto server = start();
  EXPECT_EQ(HttpServer::start({.address = server->address()}, pages()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(HttpServer, SlowClientIsEnded) {
  const auto server = start({.time_limit = absl::Milliseconds(300)});
  const Descriptor slow = connect_to(server->address());
  // One byte after the other, which an idle time alone would not end. Ends when the server closes.
  std::thread sender([&] {
    send_text(slow, "GET /metrics HTTP/1.1\r\nX: ");
    char byte = 'a';
    while (send(slow.get(), &byte, 1, MSG_NOSIGNAL) == 1) usleep(1'000);
  });
  EXPECT_EQ(parse_answer(read_all(slow)).status, 0);
  sender.join();
  EXPECT_EQ(http_get(server->address(), "/metrics").status, 200);
}

TEST(HttpServer, ClientThatReadsNothingIsEnded) {
  const auto server = start({.time_limit = absl::Milliseconds(300)});
  const Descriptor lazy = connect_to(server->address());
  send_text(lazy, "GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  // Waits for the end of the connection without reading: an error, or the end of what was sent.
  const Descriptor other = connect_to(server->address());
  EXPECT_EQ(parse_answer(read_all(other)).status, 0);  // Said nothing, and was ended later than `lazy`.
  EXPECT_LT(read_all(lazy).size(), std::size_t{32} << 20);
}

TEST(HttpServer, HugeRequestIsRefused) {
  const auto server = start();
  const Descriptor connection = connect_to(server->address());
  std::thread sender([&] {
    send_text(connection, "GET /metrics HTTP/1.1\r\n");
    for (int i = 0; i < 1'000; ++i)
      send_text(connection, absl::StrCat("X", i, ": ", std::string(1'000, 'a'), "\r\n"));
  });
  const int status = parse_answer(read_all(connection)).status;
  EXPECT_TRUE(status == 0 || (status >= 400 && status < 500)) << status;
  shutdown(connection.get(), SHUT_RDWR);
  sender.join();
  EXPECT_EQ(http_get(server->address(), "/metrics").status, 200);
}

TEST(HttpServer, GarbageIsRefused) {
  const auto server = start({.time_limit = absl::Milliseconds(500)});
  for (const std::string& garbage :
       {std::string("\0\x01\xff", 3), std::string(100'000, 'A'), std::string("GET\r\n\r\n"),
        std::string("GET /metrics HTTP/9.9\r\n\r\n"), std::string("\r\n\r\n\r\n")}) {
    const Descriptor connection = connect_to(server->address());
    send_text(connection, garbage);
    shutdown(connection.get(), SHUT_WR);
    EXPECT_NE(parse_answer(read_all(connection)).status, 200) << garbage.substr(0, 30);
  }
  EXPECT_EQ(http_get(server->address(), "/metrics").status, 200);
}

TEST(HttpServer, ManyConnectionsWaitForTheirTurn) {
  const auto server = start({.max_connections = 4, .time_limit = absl::Milliseconds(100)});
  std::vector<Descriptor> idle;
  for (int i = 0; i < 32; ++i) idle.push_back(connect_to(server->address()));
  // The idle ones are ended at the time limit, four at a time or all at once. Then there is room again.
  EXPECT_TRUE(eventually([&] { return http_get(server->address(), "/metrics").status == 200; }));
}

// Without the places of silent connections, the request would wait for an hour.
TEST(HttpServer, SilentConnectionsMakeRoom) {
  const auto server = start({.max_connections = 4, .time_limit = absl::Hours(1)});
  std::vector<Descriptor> silent;
  for (int i = 0; i < 32; ++i) silent.push_back(connect_to(server->address()));
  // They may keep their places for a moment, and until then others are closed at once.
  EXPECT_TRUE(eventually([&] { return http_get(server->address(), "/metrics").status == 200; }));
}

TEST(HttpServer, StopEndsConnectionsAndLeavesNothing) {
  const ProcessCounts before;
  {
    const auto server = start();
    const Descriptor open = connect_to(server->address());
    send_text(open, "GET ");
    EXPECT_EQ(http_get(server->address(), "/metrics").status, 200);
    server->stop();
    EXPECT_EQ(read_all(open), "");
    server->stop();
    EXPECT_FALSE(connect_to(server->address()).valid());
  }
  EXPECT_EQ(before.left(), "");
}

}  // namespace
}  // namespace gradwire::transport
