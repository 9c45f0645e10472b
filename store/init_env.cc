#include <cstdlib>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error.h"
#include "store/init_internal.h"
#include "store/tcp_store.h"

namespace gradwire::store {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(absl::StripAsciiWhitespace(value));
}

// Reads a number of 0 or more into `target`; leaves it alone if the variable is not set.
absl::Status read_number(const char* name, int& target) {
  const std::optional<std::string> text = variable(name);
  if (!text.has_value()) return absl::OkStatus();
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment's ", name, " is \"", *text, "\", not a number of 0 or more"));
  }
  target = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Rendezvous> init_env(InitRequest request) {
  if (request.rank == kUnknownRank) GRADWIRE_RETURN_IF_ERROR(read_number("RANK", request.rank));
  if (request.world_size == kUnknownWorldSize) {
    GRADWIRE_RETURN_IF_ERROR(read_number("WORLD_SIZE", request.world_size));
  }
  std::optional<std::string> host = variable("MASTER_ADDR");
  int port = 0;
  GRADWIRE_RETURN_IF_ERROR(read_number("MASTER_PORT", port));
  const bool launcher_hosts =
      absl::EqualsIgnoreCase(variable("TORCHELASTIC_USE_AGENT_STORE").value_or(""), "true");

  std::vector<std::string> missing;
  if (!variable("MASTER_PORT").has_value()) missing.push_back("MASTER_PORT");
  if (!host.has_value() && request.rank == 0 && !launcher_hosts) host = own_host_name();
  if (!host.has_value()) missing.push_back("MASTER_ADDR");
  // In an open group ranks may be assigned.
  if (request.rank == kUnknownRank && request.world_size != 0) missing.push_back("RANK");
  if (request.world_size == kUnknownWorldSize) missing.push_back("WORLD_SIZE");
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment lacks ", absl::StrJoin(missing, ", "),
                     ": set them, start by a launcher that does, or give rank and "
                     "world size as arguments"));
  }
  GRADWIRE_RETURN_IF_ERROR(check_rank(request));

  const Endpoint endpoint{*host, port};
  GRADWIRE_RETURN_IF_ERROR(check_endpoint(endpoint, 1));
  if (!launcher_hosts) {
    GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, open_tcp_store(request, endpoint));
    return join_group(std::move(store), request);
  }
  // One store serves every restart of the job; each has keys of its own.
  request.attempt = variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  request.store_outlives_group = true;
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store,
                            TcpStore::open(endpoint.host, endpoint.port, {.timeout = request.left()}));
  return join_group(std::move(store), request);
}

}  // namespace gradwire::store
