// Encodes and decodes the record of a job. The store may be open to others, so decode() accepts nothing that
// the state machine could not have written: it checks sizes and ranges first, then each node, then the rules
// between the fields. Text is made printable, because it ends up in messages and in the name of a directory.

#include "gradwire/tools/launch/rendezvous/record.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/rendezvous.pb.h"

namespace gradwire::rendezvous {
namespace {

static_assert(static_cast<int>(Phase::kJoining) == proto::RendezvousState::JOINING &&
              static_cast<int>(Phase::kRunning) == proto::RendezvousState::RUNNING &&
              static_cast<int>(Phase::kClosed) == proto::RendezvousState::CLOSED);

constexpr int kMaxPort = 65535;
constexpr int kMaxCount = 1 << 30;
constexpr int kMaxCode = 255;   // Largest exit code.
constexpr int kMaxSignal = 64;  // 128 + this is a valid exit code, too.

absl::Status refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed rendezvous record at ", kStateKey, ": ", what));
}

// Makes text from other nodes safe to print: cuts it and replaces control characters. A message may have
// several lines.
std::string clean(absl::string_view text, std::size_t max_size, bool lines = false) {
  std::string result(text.substr(0, max_size));
  for (char& c : result) {
    if (absl::ascii_iscntrl(c) && !(lines && (c == '\n' || c == '\t'))) c = '?';
  }
  return result;
}

// The bounds hold in both directions: a record that this node writes is one that every node accepts.
void encode_member(const Member& member, proto::RendezvousNode& to) {
  to.set_id(member.id);
  to.set_host(clean(member.node.host, kMaxName));
  to.set_address(clean(member.node.address, kMaxName));
  for (const Role& role : member.node.roles) {
    proto::RendezvousRole& added = *to.add_roles();
    added.set_name(clean(role.name, kMaxName));
    added.set_count(role.count);
  }
  to.set_rank(member.rank.value_or(-1));
  to.set_ready(member.ready);
  to.set_done(member.done);
}

void encode_failure(const Failure& failure, proto::RendezvousFailure& to) {
  to.set_host(clean(failure.host, kMaxName));
  to.set_rank(std::clamp(failure.rank, -1, kMaxCount));
  to.set_role(clean(failure.role, kMaxName));
  to.set_local_rank(std::clamp(failure.local_rank, -1, kMaxWorkers));
  to.set_pid(std::max(failure.pid, int64_t{0}));
  to.set_exit_code(std::clamp(failure.exit_code, 0, kMaxCode));
  to.set_signal(std::clamp(failure.signal, 0, kMaxSignal));
  to.set_time_us(absl::ToUnixMicros(failure.time));
  to.set_message(clean(failure.message, kMaxMessage, /*lines=*/true));
}

absl::StatusOr<Member> decode_member(const proto::RendezvousNode& from, const Settings& settings) {
  if (from.id().empty() ||
      std::max({from.id().size(), from.host().size(), from.address().size()}) > kMaxName) {
    return refuse("invalid id, host or address of a node");
  }
  if (from.roles_size() > kMaxRoles) return refuse("invalid roles of a node");
  Member member{.id = clean(from.id(), kMaxName),
                .node = {.host = clean(from.host(), kMaxName), .address = clean(from.address(), kMaxName)},
                .ready = from.ready(),
                .done = from.done()};
  int workers = 0;
  for (const proto::RendezvousRole& role : from.roles()) {
    if (role.name().size() > kMaxName || role.count() < 1 || role.count() > kMaxWorkers - workers) {
      return refuse("invalid roles of a node");
    }
    workers += role.count();
    member.node.roles.push_back({.name = clean(role.name(), kMaxName), .count = role.count()});
  }
  if (settings.fixed_ranks) {
    if (from.rank() < 0 || from.rank() >= settings.max_nodes) return refuse("invalid rank of a node");
    member.rank = from.rank();
  } else if (from.rank() != -1) {
    return refuse("invalid rank of a node");
  }
  return member;
}

absl::StatusOr<Failure> decode_failure(const proto::RendezvousFailure& from) {
  if (std::max(from.host().size(), from.role().size()) > kMaxName || from.message().size() > kMaxMessage ||
      from.rank() < -1 || from.rank() > kMaxCount || from.local_rank() < -1 ||
      from.local_rank() > kMaxWorkers || from.exit_code() < 0 || from.exit_code() > kMaxCode ||
      from.signal() < 0 || from.signal() > kMaxSignal || from.pid() < 0) {
    return refuse("invalid failure");
  }
  return Failure{.host = clean(from.host(), kMaxName),
                 .rank = from.rank(),
                 .role = clean(from.role(), kMaxName),
                 .local_rank = from.local_rank(),
                 .pid = from.pid(),
                 .exit_code = from.exit_code(),
                 .signal = from.signal(),
                 .time = absl::FromUnixMicros(from.time_us()),
                 .message = clean(from.message(), kMaxMessage, /*lines=*/true)};
}

absl::Status check_distinct(const Record& record) {
  HashSet<absl::string_view> ids;
  HashSet<int> ranks;
  for (const std::vector<Member>* members : {&record.participants, &record.waiting}) {
    for (const Member& member : *members) {
      if (!ids.insert(member.id).second) return refuse("duplicate node id");
      if (member.rank && !ranks.insert(*member.rank).second) return refuse("duplicate node rank");
    }
  }
  return absl::OkStatus();
}

// The state machine relies on these rules without checking them again. A record that breaks one was not
// written by a launcher of this version.
absl::Status check_phase(const Record& record) {
  const int count = static_cast<int>(record.participants.size());
  if (count > record.settings.max_nodes) return refuse("too many participants");
  const auto ready = [](const Member& member) { return member.ready; };
  const auto done = [](const Member& member) { return member.done; };
  if (!std::all_of(record.waiting.begin(), record.waiting.end(), ready) ||
      std::any_of(record.waiting.begin(), record.waiting.end(), done)) {
    return refuse("a waiting node has workers");
  }
  switch (record.phase) {
    case Phase::kJoining:
      if (std::any_of(record.participants.begin(), record.participants.end(), done))
        return refuse("a participant is done before the round runs");
      break;
    case Phase::kRunning:
      if (count < record.settings.min_nodes) return refuse("too few participants");
      if (!std::all_of(record.participants.begin(), record.participants.end(), ready))
        return refuse("a participant of a running round is not ready");
      break;
    case Phase::kClosed:
      if (record.succeeded == record.failure.has_value())
        return refuse("a closed job needs either success or a failure");
      break;
  }
  if (record.phase != Phase::kClosed && record.succeeded)
    return refuse("the job has succeeded but is not closed");
  if (record.phase == Phase::kJoining && record.store) return refuse("a round that does not run has a store");
  return absl::OkStatus();
}

}  // namespace

std::string beat_key(absl::string_view node_id) { return absl::StrCat("rendezvous/beat/", node_id); }

std::string encode(const Record& record) {
  proto::RendezvousState state;
  state.set_origin(record.origin);
  state.set_version(record.version);
  state.set_run_id(clean(record.run_id, kMaxName));
  proto::RendezvousSettings& settings = *state.mutable_settings();
  settings.set_min_nodes(record.settings.min_nodes);
  settings.set_max_nodes(record.settings.max_nodes);
  settings.set_max_restarts(record.settings.max_restarts);
  settings.set_fixed_ranks(record.settings.fixed_ranks);
  state.set_phase(static_cast<proto::RendezvousState::Phase>(record.phase));
  state.set_round(record.round);
  state.set_restarts_used(record.restarts_used);
  state.set_call_off(record.call_off);
  for (const Member& member : record.participants) encode_member(member, *state.add_participants());
  for (const Member& member : record.waiting) encode_member(member, *state.add_waiting());
  if (record.store) {
    state.set_store_host(clean(record.store->host, kMaxName));
    state.set_store_port(record.store->port);
  }
  if (record.failure) encode_failure(*record.failure, *state.mutable_failure());
  state.set_succeeded(record.succeeded);
  return state.SerializeAsString();
}

absl::StatusOr<Record> decode(absl::string_view bytes) {
  if (bytes.size() > kMaxRecord) return refuse("it is too long");
  proto::RendezvousState state;
  if (!state.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return refuse("it cannot be parsed");
  Record record{.origin = clean(state.origin(), kMaxName),
                .version = state.version(),
                .run_id = clean(state.run_id(), kMaxName),
                .settings = {.min_nodes = state.settings().min_nodes(),
                             .max_nodes = state.settings().max_nodes(),
                             .max_restarts = state.settings().max_restarts(),
                             .fixed_ranks = state.settings().fixed_ranks()},
                .round = state.round(),
                .restarts_used = state.restarts_used(),
                .call_off = state.call_off(),
                .succeeded = state.succeeded()};
  if (record.origin.empty() || record.version == 0) return refuse("origin or version is missing");
  // The id is used as a directory name.
  if (record.run_id == "." || record.run_id == ".." || absl::StrContains(record.run_id, '/')) {
    return refuse("invalid job id");
  }
  const Settings& settings = record.settings;
  if (settings.min_nodes < 1 || settings.max_nodes < settings.min_nodes || settings.max_nodes > kMaxNodes ||
      settings.max_restarts < 0) {
    return refuse("invalid settings");
  }
  if (record.round < 0 || record.round == std::numeric_limits<int64_t>::max() || record.restarts_used < 0 ||
      record.restarts_used > settings.max_restarts || record.call_off < 0 || record.call_off > kMaxNodes) {
    return refuse("invalid round, restarts_used or call_off");
  }
  record.phase = static_cast<Phase>(state.phase());
  if (record.phase < Phase::kJoining || record.phase > Phase::kClosed) return refuse("unknown phase");
  if (state.participants_size() > kMaxNodes || state.waiting_size() > kMaxNodes - state.participants_size()) {
    return refuse("too many nodes");
  }
  for (const proto::RendezvousNode& node : state.participants()) {
    GRADWIRE_ASSIGN_OR_RETURN(Member member, decode_member(node, settings));
    record.participants.push_back(std::move(member));
  }
  for (const proto::RendezvousNode& node : state.waiting()) {
    GRADWIRE_ASSIGN_OR_RETURN(Member member, decode_member(node, settings));
    record.waiting.push_back(std::move(member));
  }
  if (state.store_port() != 0) {
    if (state.store_port() < 0 || state.store_port() > kMaxPort || state.store_host().size() > kMaxName) {
      return refuse("invalid address of the round's store");
    }
    record.store = Address{.host = clean(state.store_host(), kMaxName), .port = state.store_port()};
  }
  if (state.has_failure()) {
    GRADWIRE_ASSIGN_OR_RETURN(record.failure, decode_failure(state.failure()));
  }
  GRADWIRE_RETURN_IF_ERROR(check_distinct(record));
  GRADWIRE_RETURN_IF_ERROR(check_phase(record));
  return record;
}

}  // namespace gradwire::rendezvous
