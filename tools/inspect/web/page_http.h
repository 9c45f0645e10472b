#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/security/secret.h"
#include "gradwire/transport/http/http_server.h"

namespace gradwire::inspect {

// Serves the page at "/", with the token in the query, and its data at "/data", with the token in a header.
// Nothing else. `data` returns JSON, and runs on the server's thread. Errors: InvalidArgument for an address
// that is not "HOST:PORT"; those of HttpServer::start().
absl::StatusOr<std::unique_ptr<transport::HttpServer>> start_page_http(const std::string& listen,
                                                                       bool insecure,
                                                                       const security::Secret& token,
                                                                       std::function<std::string()> data);

}  // namespace gradwire::inspect
