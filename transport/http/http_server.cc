#include "gradwire/transport/http/http_server.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/log.h"
#include "gradwire/base/monotonic_time.h"
#include "gradwire/security/local_peer/tcp_peer_user.h"
#include "gradwire/transport/http/http_host.h"
#include "gradwire/transport/http/http_socket.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/tcp/admission/admission.h"

namespace gradwire::transport {
namespace {

constexpr int kAcceptsPerRound = 16;
constexpr int64_t kRetryAcceptMs = 100;

// The host of HttpOptions::address, as a browser writes it; empty for a socket of the file system.
std::string asked_host(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return std::string();
  return absl::AsciiStrToLower(address.substr(0, address.rfind(':')));
}

// The first value of an argument or a header; empty if the request has none.
absl::string_view value_of(MHD_Connection* connection, MHD_ValueKind kind, const char* name) {
  const char* const value = MHD_lookup_connection_value(connection, kind, name);
  return value == nullptr ? absl::string_view() : absl::string_view(value);
}

// The user or the host to which the connection belongs: each gets a share of the places.
std::string owner_of(int socket, const SocketAddress& peer) {
  if (peer.storage.ss_family == AF_UNIX) return "this user";
  // An error also means that the peer is on another host, or has gone.
  const absl::StatusOr<uid_t> user = security::tcp_peer_user(socket);
  return user.ok() ? absl::StrCat("user ", *user) : host_to_string(peer);
}

void log_for_library(void* /*unused*/, const char* format, va_list arguments) {
  if (!log_enabled(LogLevel::kDebug)) return;
  char line[256];
  std::vsnprintf(line, sizeof(line), format, arguments);
  log(LogLevel::kDebug, "http: ", absl::StripTrailingAsciiWhitespace(line));
}

}  // namespace

// The library's daemon has no thread of its own here. The server's thread waits for the daemon's epoll
// descriptor and for the end, and drives the daemon. So all state belongs to this thread.
class HttpServer::Core {
 public:
  Core(const HttpOptions& options, std::map<std::string, HttpPage> pages, HttpSocket socket)
      : options_(options),
        asked_host_(asked_host(options.address)),
        pages_(std::move(pages)),
        socket_(std::move(socket)),
        admission_({.arrivals = options.max_connections,
                    .arrivals_per_host = options.max_connections,
                    .connections_per_host = 0}) {}
  ~Core() { stop(); }

  absl::Status start() {
    wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid())
      return absl::UnavailableError(absl::StrCat("cannot create an eventfd: ", std::strerror(errno)));
    daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0, nullptr, nullptr, &Core::answer,
        this, MHD_OPTION_EXTERNAL_LOGGER, &log_for_library, nullptr, MHD_OPTION_CONNECTION_LIMIT,
        // Connections that have lost their places are counted until the library has noticed.
        2 * options_.max_connections + 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT, options_.max_request_bytes,
        MHD_OPTION_NOTIFY_CONNECTION, &Core::notify, this, MHD_OPTION_END);
    if (daemon_ == nullptr)
      return absl::UnavailableError(absl::StrCat("cannot start an HTTP server at ", socket_.address));
    thread_ = std::thread([this] { serve(); });
    return absl::OkStatus();
  }

  void stop() {
    if (thread_.joinable()) {
      const uint64_t one = 1;
      (void)!write(wake_.get(), &one, sizeof(one));
      thread_.join();
    }
    if (daemon_ != nullptr) {
      MHD_stop_daemon(std::exchange(daemon_, nullptr));
    }
    socket_.socket.reset();
    if (!socket_.file.empty()) unlink(std::exchange(socket_.file, "").c_str());
  }

  const std::string& address() const { return socket_.address; }

 private:
  struct Client {
    int fd = -1;
    int64_t deadline = 0;
    Admission::Id place = 0;
  };

  void serve() {
    const MHD_DaemonInfo* const info = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD);
    pollfd descriptors[] = {
        {wake_.get(), POLLIN, 0}, {info->epoll_fd, POLLIN, 0}, {socket_.socket.get(), POLLIN, 0}};
    while ((descriptors[0].revents & POLLIN) == 0) {
      accept_connections();
      // A client that is slow is ended by the end of its socket, which the library then notices.
      const int64_t now = monotonic_nanoseconds();
      int64_t next = -1;
      for (auto& [connection, client] : clients_) {
        if (client.deadline <= now) {
          shutdown(client.fd, SHUT_RDWR);
          // Once is enough.
          client.deadline = now + absl::ToInt64Nanoseconds(options_.time_limit);
        }
        next = next < 0 ? client.deadline : std::min(next, client.deadline);
      }
      MHD_run(daemon_);
      int64_t wait_ms = next < 0 ? -1 : std::max<int64_t>(0, next - monotonic_nanoseconds()) / 1'000'000 + 1;
      if (MHD_UNSIGNED_LONG_LONG library = 0; MHD_get_timeout(daemon_, &library) == MHD_YES) {
        const auto wanted = static_cast<int64_t>(std::min<MHD_UNSIGNED_LONG_LONG>(library, 60'000));
        wait_ms = wait_ms < 0 ? wanted : std::min(wait_ms, wanted);
      }
      // Without free descriptors a connection stays in the backlog: try again after a while.
      if (std::exchange(cannot_accept_, false)) {
        descriptors[2].events = 0;
        wait_ms = wait_ms < 0 ? kRetryAcceptMs : std::min(wait_ms, kRetryAcceptMs);
      } else {
        descriptors[2].events = POLLIN;
      }
      (void)poll(descriptors, 3, static_cast<int>(std::min<int64_t>(wait_ms, 60'000)));
    }
  }

  // A crowd of new connections must not keep this thread from answering: others wait for the next round.
  void accept_connections() {
    for (int accepted = 0; accepted < kAcceptsPerRound; ++accepted) {
      SocketAddress peer;
      peer.length = sizeof(peer.storage);
      const int socket =
          accept4(socket_.socket.get(), peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (socket < 0) {
        cannot_accept_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return;
      }
      const Admission::Outcome outcome =
          admission_.arrive(owner_of(socket, peer), absl::FromUnixNanos(monotonic_nanoseconds()));
      if (outcome.replaced != 0) end_connection(outcome.replaced);
      if (outcome.admitted == 0) {
        close(socket);
        continue;
      }
      // The library closes the socket, also after an error. It calls on_connection() inside.
      admitted_ = outcome.admitted;
      if (MHD_add_connection(daemon_, socket, peer.get(), peer.length) != MHD_YES)
        admission_.leave(admitted_);
    }
  }
  // The library notices the end of the socket.
  void end_connection(Admission::Id place) {
    admission_.leave(place);
    for (const auto& [connection, client] : clients_) {
      if (client.place == place) shutdown(client.fd, SHUT_RDWR);
    }
  }

  static void notify(void* self, MHD_Connection* connection, void** /*state*/,
                     MHD_ConnectionNotificationCode event) {
    static_cast<Core*>(self)->on_connection(connection, event);
  }
  void on_connection(MHD_Connection* connection, MHD_ConnectionNotificationCode event) {
    if (event == MHD_CONNECTION_NOTIFY_CLOSED) {
      const auto found = clients_.find(connection);
      if (found == clients_.end()) return;
      admission_.leave(found->second.place);
      clients_.erase(found);
      return;
    }
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return;
    clients_[connection] = {
        info->connect_fd, monotonic_nanoseconds() + absl::ToInt64Nanoseconds(options_.time_limit), admitted_};
  }

  static MHD_Result answer(void* self, MHD_Connection* connection, const char* path, const char* method,
                           const char* /*version*/, const char* /*data*/, std::size_t* /*size*/,
                           void** /*state*/) {
    return static_cast<const Core*>(self)->on_request(connection, path, method);
  }
  // Answers at once, without the body of the request: the library then ends the connection.
  MHD_Result on_request(MHD_Connection* connection, const char* path, const char* method) const {
    const absl::string_view verb = method;
    if (verb != MHD_HTTP_METHOD_GET && verb != MHD_HTTP_METHOD_HEAD)
      return reply(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is allowed\n");
    if (!is_own_host(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST))) {
      return reply(connection, MHD_HTTP_FORBIDDEN, "use an address, or localhost, in place of this name\n");
    }
    const auto page = pages_.find(path);
    if (page == pages_.end()) return reply(connection, MHD_HTTP_NOT_FOUND, "not found\n");
    if (!has_token(connection, page->second))
      return reply(connection, MHD_HTTP_FORBIDDEN, "the token is missing or wrong\n");
    try {
      return reply(connection, MHD_HTTP_OK, page->second.make(), page->second.type);
    } catch (...) {
      log(LogLevel::kError, "http: cannot make ", page->first, ": ",
          status_from_exception(std::current_exception()).message());
      return reply(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "cannot make the page\n");
    }
  }
  // Whether the request has the right header Host. A client without this header is not a browser.
  bool is_own_host(const char* header) const {
    if (!options_.only_own_host)
      return !socket_.local || header == nullptr || is_address_or_localhost(host_of_header(header));
    if (header == nullptr) return false;
    const std::string host = host_of_header(header);
    return is_loopback_host(host) || (!host.empty() && host == asked_host_) ||
           (!socket_.local && is_address_or_localhost(host));
  }
  static bool has_token(MHD_Connection* connection, const HttpPage& page) {
    if (page.token.empty()) return true;
    const absl::string_view given = page.token_in == HttpPage::TokenIn::kQuery
                                        ? value_of(connection, MHD_GET_ARGUMENT_KIND, "token")
                                        : value_of(connection, MHD_HEADER_KIND, kTokenHeader);
    return security::equal_in_constant_time(given, page.token.reveal());
  }
  MHD_Result reply(MHD_Connection* connection, unsigned code, const std::string& body,
                   const std::string& type = "text/plain; charset=utf-8") const {
    MHD_Response* const response =
        MHD_create_response_from_buffer(body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type.c_str());
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    for (const auto& [name, value] : options_.headers)
      MHD_add_response_header(response, name.c_str(), value.c_str());
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
      MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    const MHD_Result queued = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return queued;
  }

  const HttpOptions options_;
  const std::string asked_host_;
  const std::map<std::string, HttpPage> pages_;
  HttpSocket socket_;
  Descriptor wake_;
  MHD_Daemon* daemon_ = nullptr;
  std::thread thread_;

  // Used by the server's thread, and by stop() after its end.
  absl::flat_hash_map<MHD_Connection*, Client> clients_;
  // The places of the clients.
  Admission admission_;
  // The place of the connection that the library is being given.
  Admission::Id admitted_ = 0;
  // The process has no free descriptors.
  bool cannot_accept_ = false;
};

HttpServer::HttpServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options,
                                                              std::map<std::string, HttpPage> pages) {
  GRADWIRE_ASSIGN_OR_RETURN(HttpSocket socket,
                            open_http_socket(options.address, options.insecure, options.consent));
  auto core = std::make_unique<Core>(options, std::move(pages), std::move(socket));
  GRADWIRE_RETURN_IF_ERROR(core->start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

const std::string& HttpServer::address() const { return core_->address(); }

void HttpServer::stop() { core_->stop(); }

}  // namespace gradwire::transport
