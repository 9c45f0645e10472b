#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/security/secret.h"

namespace gradwire::transport {

// Options of an HttpServer.
struct HttpOptions {
  // Where it listens: "HOST:PORT", with port 0 for a free one, or "unix:PATH". A host that is not loopback
  // needs `insecure`. With a PATH that ends in '/', which must be an existing folder, the socket gets a name
  // of its own there. Only this user can connect to a socket that is a file.
  std::string address;
  // Whether processes of other hosts may connect. They prove nothing: HTTP has no credentials here.
  bool insecure = false;
  // How the user gives this consent, for the message of an error.
  std::string consent = "insecure";
  // Connections at a time. When there are so many, a new one takes the place of another one, or is closed
  // (transport/tcp/admission/admission.h). Users of this host share the places, and so do other hosts. So
  // nobody who keeps connections open keeps others out.
  unsigned max_connections = 16;
  // Maximum time from the beginning of a connection to its end, however fast its bytes come or go.
  absl::Duration time_limit = absl::Seconds(10);
  // Memory for the request of one connection; a longer one is refused.
  std::size_t max_request_bytes = std::size_t{8} << 10;
  // Names and values of headers that every answer has, errors included.
  std::vector<std::pair<std::string, std::string>> headers;
  // For pages that browsers show: a request must have the header Host, with localhost, a loopback address, or
  // the host of `address`. If other hosts can connect, it may have any address, but no other name. Others are
  // answered with 403.
  bool only_own_host = false;
};

// A page: the type of its contents and a function that makes them. The function runs on the server's thread,
// so one page is made at a time. It must not wait longer than the clients do.
struct HttpPage {
  std::string type = "text/plain; charset=utf-8";
  std::function<std::string()> make;
  // The token that a request must have, or empty. A request without it is answered with 403. The tokens are
  // compared in a time that depends on their sizes only.
  security::Secret token;
  // Where the token is expected: the argument `token` of the query, or the header kTokenHeader, which no page
  // of another origin can send.
  enum class TokenIn { kQuery, kHeader };
  TokenIn token_in = TokenIn::kQuery;
};

// Serves a fixed set of pages over HTTP, for tools that read the state of a process, such as Prometheus. It
// answers only GET and HEAD, takes nothing from the request but the path and a token, and ends the connection
// after each answer. Everything that a client may do is bounded: connections, their time and the size of a
// request.
//
// A server on a loopback address answers only requests that name it by an address or as localhost. So a page
// in a browser of this host cannot read it by a host name of its own (DNS rebinding).
//
// libmicrohttpd reads and writes HTTP. One thread does all work, and sleeps while nobody asks. Thread-safe.
class HttpServer {
 public:
  // `pages` by path, for example "/metrics". Errors: InvalidArgument for a malformed address;
  // FailedPrecondition for an address that other hosts reach, without consent; Unavailable if the socket
  // cannot be opened.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(const HttpOptions& options,
                                                           std::map<std::string, HttpPage> pages);
  // As stop().
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Where it listens, with the port: "127.0.0.1:9100", "unix:/tmp/a".
  const std::string& address() const;

  // Ends all connections and joins the thread. A page that is being made is finished first. Idempotent, but
  // must be called by one thread at a time, and not by a page.
  void stop();

 private:
  class Core;
  explicit HttpServer(std::unique_ptr<Core> core);
  const std::unique_ptr<Core> core_;
};

// The header of HttpPage::TokenIn::kHeader.
inline constexpr char kTokenHeader[] = "X-Gradwire-Token";

// The content type of Prometheus's text.
inline constexpr absl::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace gradwire::transport
