#include "gradwire/transport/http/http_server.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/random_id.h"
#include "gradwire/security/local_peer/tcp_peer_user.h"
#include "gradwire/transport/tcp/admission/admission.h"
#include "gradwire/transport/tcp/socket/address.h"

namespace gradwire::transport {
namespace {

// The host in the header Host of a request, without the port, in small letters: "127.0.0.1", "[::1]", "ps".
std::string host_of_header(absl::string_view header) {
  const std::size_t from = absl::StartsWith(header, "[") ? header.find(']') : 0;
  if (from == absl::string_view::npos) return std::string();
  return absl::AsciiStrToLower(header.substr(0, header.find(':', from)));
}

// Whether `host` is an address, or localhost: then the client has not got here by a name that somebody else
// controls (DNS rebinding).
bool is_address_or_localhost(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return true;
  return host == "localhost" || (!host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
           return absl::ascii_isdigit(c) || c == '.';
         }));
}

// The same, but only for addresses that begin as those of the loopback interface do.
bool is_loopback_host(absl::string_view host) {
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") && is_address_or_localhost(host));
}

// A socket that listens for an HTTP server.
struct HttpSocket {
  Descriptor socket;
  // As HttpServer::address().
  std::string address;
  // The file of the socket, which its owner must remove; empty for TCP.
  std::string file;
  // Whether only processes of this host reach it.
  bool local = true;
};

// Connections that have not been accepted yet.
constexpr int kBacklog = 16;

absl::Status failed(absl::string_view what, const std::string& address) {
  return system_status(absl::StrCat(what, " ", address), errno);
}

absl::Status malformed(const std::string& address) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed address of an HTTP server: got \"", address,
                   "\", expected \"HOST:PORT\", \"[IPV6]:PORT\" or \"unix:PATH\""));
}

// Splits "HOST:PORT" and "[HOST]:PORT".
bool split(absl::string_view text, std::string& host, int& port) {
  const std::size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  absl::string_view name = text.substr(0, colon);
  if (absl::ConsumePrefix(&name, "[")) {
    if (!absl::ConsumeSuffix(&name, "]")) return false;
  } else if (absl::StrContains(name, ":")) {
    return false;
  }
  host = std::string(name);
  return !name.empty() && absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 0 && port <= 65'535;
}

absl::StatusOr<HttpSocket> open_file(std::string path) {
  if (absl::EndsWith(path, "/")) absl::StrAppend(&path, absl::Hex(random_id(), absl::kZeroPad16), ".sock");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path of a socket must have 1 to ", sizeof(address.sun_path) - 1, " bytes, got \"", path, "\""));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  HttpSocket socket;
  socket.address = absl::StrCat("unix:", path);
  socket.socket =
      Descriptor::from([&] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!socket.socket.valid()) return failed("cannot create a socket for", socket.address);
  if (bind(socket.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return failed("cannot bind", socket.address);
  socket.file = path;
  // Before listen(), so that no other user ever connects.
  if (chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(socket.socket.get(), kBacklog) != 0) {
    absl::Status status = failed("cannot listen on", socket.address);
    unlink(path.c_str());
    return status;
  }
  return socket;
}

absl::StatusOr<HttpSocket> open_tcp(const SocketAddress& address) {
  HttpSocket socket;
  socket.local = is_loopback(address);
  const std::string name = to_string(address);
  socket.socket = Descriptor::from(
      [&] { return ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!socket.socket.valid()) return failed("cannot create a socket for", name);
  const int on = 1;
  // A port whose last connections have just ended may be used again.
  setsockopt(socket.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.socket.get(), address.get(), address.length) != 0) return failed("cannot bind", name);
  if (listen(socket.socket.get(), kBacklog) != 0) return failed("cannot listen on", name);
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(socket.socket.get(), bound.get(), &bound.length) != 0)
    return failed("cannot read the address of", name);
  socket.address = to_string(bound);
  return socket;
}

// Opens the socket of HttpOptions::address. `insecure`, `consent` and the errors: as there.
absl::StatusOr<HttpSocket> open_http_socket(const std::string& address, bool insecure,
                                            const std::string& consent) {
  if (absl::string_view path = address; absl::ConsumePrefix(&path, "unix:"))
    return open_file(std::string(path));
  std::string host;
  int port = 0;
  if (!split(address, host, port)) return malformed(address);
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<SocketAddress> candidates, resolve_bind_addresses(host, port));
  absl::Status status = malformed(address);
  for (const SocketAddress& candidate : candidates) {
    if (!is_loopback(candidate) && !insecure) {
      return absl::FailedPreconditionError(
          absl::StrCat("HTTP server at ", address, " refused: other hosts can reach ", to_string(candidate),
                       ", and HTTP has no credentials; use a loopback address, or allow it with ", consent));
    }
    absl::StatusOr<HttpSocket> socket = open_tcp(candidate);
    if (socket.ok()) return socket;
    status = socket.status();
  }
  return status;
}

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
    wake_ = Descriptor::from([&] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (!wake_.valid()) return system_status("cannot create an eventfd", errno);
    daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0, nullptr, nullptr, &Core::answer,
        this, MHD_OPTION_EXTERNAL_LOGGER, &log_for_library, nullptr, MHD_OPTION_CONNECTION_LIMIT,
        // Connections that have lost their places are counted until the library has noticed.
        2 * options_.max_connections + 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT, options_.max_request_bytes,
        MHD_OPTION_NOTIFY_CONNECTION, &Core::notify, this, MHD_OPTION_END);
    if (daemon_ == nullptr)
      return absl::UnavailableError(absl::StrCat("cannot start an HTTP server at ", socket_.address));
    own_descriptor(epoll_fd());
    GRADWIRE_ASSIGN_OR_RETURN(thread_, start_thread("http", [this] { serve(); }));
    return absl::OkStatus();
  }

  void stop() {
    // A forked child has neither the thread nor the sockets. The file is its parent's.
    if (!mark_.here()) return leak_after_fork(thread_, clients_);
    if (thread_.joinable()) {
      const uint64_t one = 1;
      (void)!write(wake_.get(), &one, sizeof(one));
      thread_.join();
    }
    if (daemon_ != nullptr) {
      disown_descriptor(epoll_fd());
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

  int epoll_fd() const { return MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd; }

  void serve() {
    pollfd descriptors[] = {
        {wake_.get(), POLLIN, 0}, {epoll_fd(), POLLIN, 0}, {socket_.socket.get(), POLLIN, 0}};
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
      int socket;
      {
        const ForkDelay delay;
        socket = accept4(socket_.socket.get(), peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        own_descriptor(socket);
      }
      if (socket < 0) {
        cannot_accept_ = is_shortage(errno);
        return;
      }
      const Admission::Outcome outcome =
          admission_.arrive(owner_of(socket, peer), absl::FromUnixNanos(monotonic_nanoseconds()));
      if (outcome.replaced != 0) end_connection(outcome.replaced);
      if (outcome.admitted == 0) {
        disown_descriptor(socket);
        close(socket);
        continue;
      }
      // The library closes the socket, also after an error. It calls on_connection() inside.
      admitted_ = outcome.admitted;
      if (MHD_add_connection(daemon_, socket, peer.get(), peer.length) != MHD_YES) {
        disown_descriptor(socket);
        admission_.leave(admitted_);
      }
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
    Core& core = *static_cast<Core*>(self);
    at_boundary(
        "a connection of the http server", [&] { core.on_connection(connection, event); },
        [&](const absl::Status&) { core.refuse(connection); });
  }
  // Ends a new connection that cannot be served.
  void refuse(MHD_Connection* connection) {
    admission_.leave(admitted_);
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return;
    disown_descriptor(info->connect_fd);
    shutdown(info->connect_fd, SHUT_RDWR);
  }
  void on_connection(MHD_Connection* connection, MHD_ConnectionNotificationCode event) {
    if (event == MHD_CONNECTION_NOTIFY_CLOSED) {
      const auto found = clients_.find(connection);
      if (found == clients_.end()) return;
      admission_.leave(found->second.place);
      // The library closes it next.
      disown_descriptor(found->second.fd);
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
    return at_boundary(
        "a request of the http server",
        [&] { return static_cast<const Core*>(self)->on_request(connection, path, method); },
        // The library closes the connection.
        [](const absl::Status&) { return MHD_NO; });
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

  const ProcessMark mark_;
  const HttpOptions options_;
  const std::string asked_host_;
  const std::map<std::string, HttpPage> pages_;
  HttpSocket socket_;
  Descriptor wake_;
  MHD_Daemon* daemon_ = nullptr;
  std::thread thread_;

  // Used by the server's thread, and by stop() after its end.
  HashMap<MHD_Connection*, Client> clients_;
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
