#include "gradwire/tools/launch/options/option_security.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/options/name_pattern.h"
#include "gradwire/tools/launch/options/option_values.h"

namespace gradwire::tools {
namespace {

using Kind = LaunchSecurity::Kind;

// The names that LaunchInfo::name() gives to workers without --worker_name.
constexpr char kDefaultName[] = "{role}{role_rank}";

bool has_certificate(const SecurityDraft& draft) {
  return !draft.certificate_file.empty() || !draft.key_file.empty() || !draft.authority_file.empty();
}

bool chosen(const SecurityDraft& draft) {
  return draft.insecure || draft.secure || !draft.token_file.empty() || has_certificate(draft);
}

// The user's choice on the command line stands against all variables.
absl::Status read_variables(SecurityDraft& draft, const Variables& variable) {
  if (chosen(draft)) return absl::OkStatus();
  draft.token_file = variable("GRADWIRE_TOKEN_FILE").value_or("");
  draft.certificate_file = variable("GRADWIRE_CERTIFICATE_FILE").value_or("");
  draft.key_file = variable("GRADWIRE_KEY_FILE").value_or("");
  draft.authority_file = variable("GRADWIRE_AUTHORITY_FILE").value_or("");
  // As in the workers, this variable has no effect beside a token or certificates.
  if (chosen(draft)) return absl::OkStatus();
  if (const std::optional<std::string> insecure = variable("GRADWIRE_INSECURE")) {
    GRADWIRE_RETURN_IF_ERROR(
        with_context(parse_bool(*insecure, draft.insecure), "environment variable GRADWIRE_INSECURE"));
  }
  return absl::OkStatus();
}

absl::Status check_consistent(const SecurityDraft& draft) {
  std::vector<absl::string_view> kinds;
  if (!draft.token_file.empty()) kinds.push_back("--token_file");
  if (has_certificate(draft)) kinds.push_back("--certificate_file, --key_file and --authority_file");
  if (draft.secure) kinds.push_back("--secure");
  if (draft.insecure) kinds.push_back("--insecure");
  if (kinds.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("a job is protected in one way: got ",
                                                   absl::StrJoin(kinds, " and "), "; give one of them"));
  }
  if (has_certificate(draft) &&
      (draft.certificate_file.empty() || draft.key_file.empty() || draft.authority_file.empty())) {
    return absl::InvalidArgumentError(
        "--certificate_file, --key_file and --authority_file belong together: give all three or none");
  }
  const bool for_workers = !draft.worker_certificate_file.empty() || !draft.worker_key_file.empty();
  if (for_workers &&
      (!has_certificate(draft) || draft.worker_certificate_file.empty() || draft.worker_key_file.empty())) {
    return absl::InvalidArgumentError(
        "--worker_certificate_file and --worker_key_file belong together, and to --certificate_file: give "
        "all "
        "or none");
  }
  return absl::OkStatus();
}

absl::Status check_worker_name(const std::string& pattern, const LaunchOptions& options) {
  const bool several = options.nproc_per_node > 1 || options.max_nodes > 1;
  if (pattern.empty() || !several || has_rank_field(pattern)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("option --worker_name: \"", pattern,
                                                 "\" gives several workers the same name: use {rank} or "
                                                 "{role_rank} in it"));
}

bool is_loopback_endpoint(const std::string& text) {
  const absl::StatusOr<store::Endpoint> endpoint = store::parse_endpoint(text);
  return endpoint.ok() && store::is_loopback(endpoint->host);
}

// The address at which other hosts would reach the job, or "" if all its nodes are on this host.
std::string address_for_others(const LaunchOptions& options) {
  if (!options.local_addr.empty() && !store::is_loopback(options.local_addr)) return options.local_addr;
  if (options.backend != RendezvousBackend::kEtcd) {
    return store::is_loopback(options.master_addr) ? "" : options.master_addr;
  }
  // The address of the round's store is that of the route to etcd.
  const auto elsewhere =
      std::find_if_not(options.endpoints.begin(), options.endpoints.end(), is_loopback_endpoint);
  return elsewhere == options.endpoints.end() ? "" : *elsewhere;
}

absl::StatusOr<Kind> choose_kind(const SecurityDraft& draft, const Variables& variable,
                                 const LaunchOptions& options) {
  if (draft.insecure) return Kind::kInsecure;
  if (!draft.token_file.empty()) return Kind::kToken;
  if (has_certificate(draft)) return Kind::kCertificates;
  if (draft.secure) {
    if (options.max_nodes == 1) return Kind::kNewCertificates;
    return absl::InvalidArgumentError(
        "--secure makes certificates for a job on one node: with --nnodes above 1 make them yourself, and "
        "give "
        "--certificate_file, --key_file and --authority_file");
  }
  if (options.max_nodes == 1) return Kind::kNewToken;
  if (variable("GRADWIRE_TOKEN_FD")) return Kind::kToken;
  const std::string address = address_for_others(options);
  if (address.empty()) return Kind::kThisHost;
  return absl::InvalidArgumentError(absl::StrCat(
      "the nodes meet at ", address,
      ", where other hosts can connect, and nothing says who may: give all nodes the same --token_file (make "
      "it "
      "with --make_token), or --certificate_file, --key_file and --authority_file, or --insecure if every "
      "process in the network is trusted"));
}

}  // namespace

absl::StatusOr<LaunchSecurity> resolve_security(SecurityDraft draft, const Variables& variable,
                                                const LaunchOptions& options) {
  GRADWIRE_RETURN_IF_ERROR(read_variables(draft, variable));
  GRADWIRE_RETURN_IF_ERROR(check_consistent(draft));
  GRADWIRE_RETURN_IF_ERROR(check_worker_name(draft.worker_name, options));
  GRADWIRE_ASSIGN_OR_RETURN(const Kind kind, choose_kind(draft, variable, options));
  if (kind == Kind::kNewCertificates && draft.worker_name.empty()) draft.worker_name = kDefaultName;
  return LaunchSecurity{.kind = kind,
                        .token_file = std::move(draft.token_file),
                        .certificate_file = std::move(draft.certificate_file),
                        .key_file = std::move(draft.key_file),
                        .authority_file = std::move(draft.authority_file),
                        .worker_certificate_file = std::move(draft.worker_certificate_file),
                        .worker_key_file = std::move(draft.worker_key_file),
                        .worker_name = std::move(draft.worker_name),
                        .allow_unauthenticated_pytorch = draft.allow_unauthenticated_pytorch};
}

}  // namespace gradwire::tools
