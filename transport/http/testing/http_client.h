#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport::testing {

// A connection to an HTTP server, at "127.0.0.1:PORT", "[::1]:PORT" or "unix:PATH". Not valid if the server
// refuses it. Reads and writes give up after 30 s.
Descriptor connect_to(const std::string& address);

// Sends all bytes, unless the server ends the connection.
void send_text(const Descriptor& connection, absl::string_view text);
// Reads until the server ends the connection.
std::string read_all(const Descriptor& connection);

struct HttpAnswer {
  int status = 0;  // 0 without an answer.
  std::string head;
  std::string body;
};
HttpAnswer parse_answer(const std::string& text);

// Asks for a page, as Prometheus does.
HttpAnswer http_get(const std::string& address, const std::string& path,
                    const std::string& host = "127.0.0.1", const std::string& method = "GET");

}  // namespace gradwire::transport::testing
