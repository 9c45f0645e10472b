#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/host.h"
#include "gradwire/security/setup/environment.h"
#include "gradwire/store/init/init_internal.h"
#include "gradwire/store/init/process_place.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::store {
namespace {

constexpr int kNoRound = -1;

// Reads a number of 0 or more into `target`. Does not change `target` if the variable is not set.
absl::Status read_number(const char* name, int& target) {
  const std::optional<std::string> text = environment_variable(name);
  if (!text.has_value()) return absl::OkStatus();
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", name, " is \"", *text, "\", expected a number of 0 or more"));
  }
  target = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Rendezvous> init_env(InitRequest request) {
  // Arguments of the caller and of the URL come before the environment.
  const PlaceVariables place = place_variables();
  if (request.rank == kUnknownRank) GRADWIRE_RETURN_IF_ERROR(read_number(place.rank, request.rank));
  if (request.world_size == kUnknownWorldSize) {
    GRADWIRE_RETURN_IF_ERROR(read_number(place.world_size, request.world_size));
  }
  std::optional<std::string> host = environment_variable("MASTER_ADDR");
  int port = 0;
  GRADWIRE_RETURN_IF_ERROR(read_number("MASTER_PORT", port));
  // The launcher serves the store: no worker hosts it, not even rank 0.
  const bool launcher_hosts =
      absl::EqualsIgnoreCase(environment_variable("TORCHELASTIC_USE_AGENT_STORE").value_or(""), "true");

  std::vector<std::string> missing;
  if (!environment_variable("MASTER_PORT").has_value()) missing.push_back("MASTER_PORT");
  if (!host.has_value() && request.rank == 0 && !launcher_hosts) {
    GRADWIRE_ASSIGN_OR_RETURN(request.options.security, security::with_environment(request.options.security));
    host = security::may_leave_host(request.options.security) ? host_name() : "localhost";
  }
  if (!host.has_value()) missing.push_back("MASTER_ADDR");
  // In an open group the ranks may be assigned.
  if (request.rank == kUnknownRank && request.world_size != 0) missing.push_back(place.rank);
  if (request.world_size == kUnknownWorldSize) missing.push_back(place.world_size);
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment lacks ", absl::StrJoin(missing, ", "),
                     ": set them, use a launcher that sets them, or give rank and world size as arguments"));
  }
  GRADWIRE_RETURN_IF_ERROR(check_rank(request));

  const Endpoint endpoint{*host, port};
  GRADWIRE_RETURN_IF_ERROR(check_endpoint(endpoint, 1));
  if (!launcher_hosts) {
    GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, open_tcp_store(request, endpoint));
    return join_group(std::move(store), request);
  }
  int round = kNoRound;
  GRADWIRE_RETURN_IF_ERROR(read_number("GRADWIRE_ROUND", round));
  GRADWIRE_ASSIGN_OR_RETURN(
      std::shared_ptr<Store> store,
      TcpStore::open(endpoint.host, endpoint.port,
                     {.timeout = request.left(), .security = request.options.security}));
  // One store may serve every start of the job's workers, so each start needs keys of its own. Gradwire's
  // launcher sets the number of the round (not every round is a restart); torchrun sets the number of
  // restarts.
  if (round == kNoRound) {
    request.attempt = environment_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  } else {
    store = std::make_shared<PrefixStore>(absl::StrCat("round_", round), std::move(store));
  }
  return join_group(std::move(store), request);
}

}  // namespace gradwire::store
