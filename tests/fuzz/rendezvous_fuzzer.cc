// Reads the input as the record that the nodes of a job share (tools/launch/rendezvous/record.h).

#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "gradwire/proto/rendezvous.pb.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace {

using gradwire::fuzzing::require;
namespace proto = gradwire::proto;
namespace rendezvous = gradwire::rendezvous;

bool within(int64_t value, int64_t least, int64_t most) { return value >= least && value <= most; }

// Replaces the bytes that control a terminal, as the decoder must.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

bool is_node(const proto::RendezvousNode& node, const proto::RendezvousSettings& settings) {
  if (node.id().empty() || node.id().size() > 255 || node.host().size() > 255 || node.address().size() > 255)
    return false;
  if (node.roles_size() > 64) return false;
  int64_t workers = 0;
  for (const proto::RendezvousRole& role : node.roles()) {
    if (role.name().size() > 255 || role.count() < 1) return false;
    workers += role.count();
  }
  if (workers > 1 << 20) return false;
  return settings.fixed_ranks() ? within(node.rank(), 0, settings.max_nodes() - 1) : node.rank() == -1;
}

bool is_failure(const proto::RendezvousFailure& failure) {
  return failure.host().size() <= 255 && failure.role().size() <= 255 && failure.message().size() <= 4096 &&
         within(failure.rank(), -1, 1 << 30) && within(failure.local_rank(), -1, 1 << 20) &&
         within(failure.exit_code(), 0, 255) && within(failure.signal(), 0, 64) && failure.pid() >= 0;
}

// Whether the record is valid by proto/rendezvous.proto and record.h.
bool is_record(const proto::RendezvousState& state) {
  const proto::RendezvousSettings& settings = state.settings();
  const std::string run_id = printable(state.run_id().substr(0, 255));
  if (state.origin().empty() || state.version() == 0) return false;
  if (run_id == "." || run_id == ".." || run_id.find('/') != std::string::npos) return false;
  if (!within(settings.min_nodes(), 1, settings.max_nodes()) || settings.max_nodes() > 4096) return false;
  if (settings.max_restarts() < 0 || !within(state.restarts_used(), 0, settings.max_restarts())) return false;
  if (!within(state.round(), 0, std::numeric_limits<int64_t>::max() - 1)) return false;
  if (!within(state.call_off(), 0, 4096) || !within(state.phase(), 1, 3)) return false;
  if (state.participants_size() > settings.max_nodes() ||
      state.participants_size() + state.waiting_size() > 4096)
    return false;
  std::set<std::string> ids;
  std::set<int> ranks;
  int ready = 0, done = 0;
  for (const auto* nodes : {&state.participants(), &state.waiting()}) {
    for (const proto::RendezvousNode& node : *nodes) {
      if (!is_node(node, settings) || !ids.insert(printable(node.id())).second) return false;
      if (settings.fixed_ranks() && !ranks.insert(node.rank()).second) return false;
      if (nodes == &state.waiting() && (!node.ready() || node.done())) return false;
      if (nodes == &state.participants()) {
        ready += node.ready();
        done += node.done();
      }
    }
  }
  if (!within(state.store_port(), 0, 65'535)) return false;
  if (state.store_port() != 0 && state.store_host().size() > 255) return false;
  if (state.has_failure() && !is_failure(state.failure())) return false;
  if (state.phase() == proto::RendezvousState::CLOSED) return state.succeeded() != state.has_failure();
  if (state.succeeded()) return false;
  if (state.phase() == proto::RendezvousState::JOINING) return done == 0 && state.store_port() == 0;
  return state.participants_size() >= settings.min_nodes() && ready == state.participants_size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  proto::RendezvousState state;
  const bool valid = state.ParseFromString(bytes) && is_record(state);
  const absl::StatusOr<rendezvous::Record> record = rendezvous::decode(bytes);
  require(record.ok() == valid, "a record is accepted or refused wrongly");
  if (!valid) {
    require(absl::IsInvalidArgument(record.status()), "an error that is not InvalidArgument");
    return 0;
  }
  for (const auto* members : {&record->participants, &record->waiting}) {
    for (const rendezvous::Member& member : *members)
      require(member.id == printable(member.id) && member.node.host == printable(member.node.host),
              "a control character was not replaced");
  }
  const absl::StatusOr<rendezvous::Record> decoded_again = rendezvous::decode(rendezvous::encode(*record));
  require(decoded_again.ok() && *decoded_again == *record, "a record does not survive encoding");
  return 0;
}
