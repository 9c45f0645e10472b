#include "gradwire/tools/bench/suites/bench_options.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/tools/bench/suites/case_name.h"

namespace gradwire::bench {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

absl::Status check_known(const char* what, const std::vector<std::string>& given,
                         const std::vector<std::string>& known) {
  for (const std::string& value : given) {
    if (!contains(known, value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown ", what, " \"", value, "\"; expected one of ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

// Returns the known case with the same operation and another count. For example, all_to_all_12 is run as
// all_to_all_8 is, and clients_50 as clients_1000. Returns nullptr if there is no such case.
const CaseSpec* counted_case(const std::vector<std::string>& suites, const CaseName& wanted) {
  for (const CaseSpec& spec : cases()) {
    if (contains(suites, spec.suite) && parse_case(spec.name).operation == wanted.operation &&
        wanted.count >= spec.min_count && wanted.count <= spec.max_count) {
      return &spec;
    }
  }
  return nullptr;
}

// Returns a known case with the same operation and size whose callers compute, too: add2_every_2ms for
// add2_every_1ms_2_per_core. Returns nullptr if there is no such case.
const CaseSpec* cadence_case(const std::vector<std::string>& suites, const CaseName& wanted) {
  for (const CaseSpec& spec : cases()) {
    const CaseName known = parse_case(spec.name);
    if (contains(suites, spec.suite) && spec.kind == CaseKind::kCadence &&
        known.operation == wanted.operation && known.bytes == wanted.bytes) {
      return &spec;
    }
  }
  return nullptr;
}

// Returns a known case that differs from `name` only in its numbers: echo_1MiB for echo_256KiB. Returns
// nullptr if no case fits.
const CaseSpec* sibling_of(const std::vector<std::string>& suites, const std::string& name) {
  const CaseName wanted = parse_case(name);
  if (wanted.compute_us > 0) return cadence_case(suites, wanted);
  if (wanted.count > 0) return counted_case(suites, wanted);
  if (wanted.bytes < 64) return nullptr;
  for (const CaseSpec& spec : cases()) {
    const CaseName known = parse_case(spec.name);
    // push_pull works only with the size of its parameter server.
    if (contains(suites, spec.suite) && known.bytes > 0 && known.family() == wanted.family() &&
        known.operation != "push_pull") {
      return &spec;
    }
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<BenchOptions> complete_options(const RawOptions& raw) {
  BenchOptions options{.suites = raw.suites,
                       .peers = raw.peers,
                       .transports = raw.transports,
                       .seconds = raw.seconds,
                       .rounds = raw.rounds,
                       .floors = raw.floors};
  if (contains(options.suites, "all")) {
    // The suite "cuda" runs only if it is named, too.
    const bool cuda = contains(options.suites, "cuda");
    options.suites = suites();
    if (!cuda) options.suites.erase(std::find(options.suites.begin(), options.suites.end(), "cuda"));
  }
  absl::Status status = check_known("suite", options.suites, suites());
  std::vector<std::string> peers;
  for (const RoleSpec& role : roles()) {
    if (!role.peer_flag.empty() && !contains(peers, role.peer_flag)) peers.push_back(role.peer_flag);
  }
  if (status.ok()) status = check_known("peer", options.peers, peers);
  if (status.ok())
    status = check_known("transport", options.transports, {"shm", "tcp", "plain", "token", "tls"});
  if (status.ok() && !(raw.seconds > 0 && raw.seconds <= 600)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("--seconds must be more than 0 and at most 600, got ", raw.seconds));
  }
  if (status.ok() && !(raw.rounds >= 1 && raw.rounds <= 100)) {
    status = absl::InvalidArgumentError(absl::StrCat("--rounds must be from 1 to 100, got ", raw.rounds));
  }
  if (!status.ok()) return status;

  std::set<std::string> missing(raw.cases.begin(), raw.cases.end());
  for (const CaseSpec& spec : cases()) {
    if (!contains(options.suites, spec.suite)) continue;
    const bool named = contains(raw.cases, spec.name);
    missing.erase(spec.name);
    if (named || (raw.cases.empty() && !spec.on_request)) options.cases.push_back(spec);
  }
  for (const std::string& name : missing) {
    const CaseSpec* sibling = sibling_of(options.suites, name);
    if (sibling == nullptr) {
      std::vector<std::string> known;
      for (const CaseSpec& spec : cases()) {
        if (contains(options.suites, spec.suite)) known.push_back(spec.name);
      }
      return absl::InvalidArgumentError(
          absl::StrCat("unknown case \"", name, "\"; expected one of ", absl::StrJoin(known, ", ")));
    }
    CaseSpec spec = *sibling;
    const CaseName wanted = parse_case(name);
    if (wanted.compute_us > 0) {
      spec.members = 2 * wanted.per_core;
      spec.callers = wanted.per_core;
    } else if (spec.kind == CaseKind::kFirstContact) {
      spec.members = static_cast<int>(wanted.count);
    } else if (wanted.bytes > 0) {
      spec.bytes_per_call = sibling->bytes_per_call / parse_case(sibling->name).bytes * wanted.bytes;
    }
    spec.name = name;
    options.cases.push_back(spec);
  }
  return options;
}

}  // namespace gradwire::bench
