#include "gradwire/transport/http/testing/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gradwire::transport::testing {
namespace {

Descriptor connected(const sockaddr* address, socklen_t length) {
  Descriptor connection(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit = {30, 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(connection.get(), address, length) != 0) connection.reset();
  return connection;
}

}  // namespace

Descriptor connect_to(const std::string& address) {
  absl::string_view text = address;
  if (absl::ConsumePrefix(&text, "unix:")) {
    sockaddr_un file = {};
    file.sun_family = AF_UNIX;
    std::memcpy(file.sun_path, text.data(), std::min(text.size(), sizeof(file.sun_path) - 1));
    return connected(reinterpret_cast<const sockaddr*>(&file), sizeof(file));
  }
  int port = 0;
  (void)absl::SimpleAtoi(text.substr(text.rfind(':') + 1), &port);
  if (absl::ConsumePrefix(&text, "[::1]")) {
    sockaddr_in6 ip = {};
    ip.sin6_family = AF_INET6;
    ip.sin6_addr = in6addr_loopback;
    ip.sin6_port = htons(static_cast<uint16_t>(port));
    return connected(reinterpret_cast<const sockaddr*>(&ip), sizeof(ip));
  }
  sockaddr_in ip = {};
  ip.sin_family = AF_INET;
  ip.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ip.sin_port = htons(static_cast<uint16_t>(port));
  return connected(reinterpret_cast<const sockaddr*>(&ip), sizeof(ip));
}

void send_text(const Descriptor& connection, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::string read_all(const Descriptor& connection) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t received = recv(connection.get(), buffer, sizeof(buffer), 0);
    if (received <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(received));
  }
}

HttpAnswer parse_answer(const std::string& text) {
  HttpAnswer answer;
  const std::size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos || text.rfind("HTTP/1.1 ", 0) != 0) return answer;
  answer.head = text.substr(0, end);
  answer.body = text.substr(end + 4);
  (void)absl::SimpleAtoi(text.substr(9, 3), &answer.status);
  return answer;
}

HttpAnswer http_get(const std::string& address, const std::string& path, const std::string& host,
                    const std::string& method) {
  const Descriptor connection = connect_to(address);
  if (!connection.valid()) return {};
  send_text(connection, absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
  return parse_answer(read_all(connection));
}

}  // namespace gradwire::transport::testing
