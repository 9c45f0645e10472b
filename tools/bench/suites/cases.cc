#include "gradwire/tools/bench/suites/cases.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/bench/suites/case_name.h"

namespace gradwire::bench {
namespace {

// Maximum size of a group: the bench runs all its processes on one host.
constexpr int kMaxMembers = 256;

// The processes of a case with many connections, and the maximum number of these.
constexpr int kClientProcesses = 8;
constexpr int kMaxClients = 4096;

// Adds the cases of the suite collectives: every size for all_reduce, which dominates training, and fewer
// sizes for the others. The lists of all ranks must fit in memory, so operations on lists have smaller sizes.
void add_collectives(std::vector<CaseSpec>& all) {
  const std::vector<std::string> every = {"8B", "64B", "1KiB", "4KiB", "64KiB", "1MiB", "16MiB", "64MiB"};
  const std::vector<std::string> some = {"8B", "4KiB", "64KiB", "1MiB", "16MiB"};
  const std::vector<std::string> lists = {"8B", "4KiB", "64KiB", "1MiB", "4MiB"};
  const std::vector<std::pair<std::string, const std::vector<std::string>*>> operations = {
      {"all_reduce", &every}, {"broadcast", &some}, {"reduce", &some},          {"all_gather", &lists},
      {"gather", &lists},     {"scatter", &lists},  {"reduce_scatter", &lists}, {"all_to_all", &lists},
      {"barrier", nullptr},   {"send_recv", &some}};
  for (const int members : {2, 4}) {
    for (const auto& [operation, sizes] : operations) {
      const std::string name = absl::StrCat(operation, "_", members, "_ranks");
      CaseSpec spec{.suite = "collectives",
                    .name = name,
                    .kind = CaseKind::kTogether,
                    .members = members,
                    .callers = 0};
      if (sizes == nullptr) {
        all.push_back(spec);
        continue;
      }
      spec.plot = operation == "all_reduce" ? name : "";
      for (const std::string& size : *sizes) {
        spec.name = absl::StrCat(name, "_", size);
        spec.bytes_per_call = parse_case(spec.name).bytes;
        spec.weight = spec.bytes_per_call >= (16 << 20) ? 2.0 : 1.0;
        all.push_back(spec);
      }
    }
  }
}

// Adds the cases in which the callers compute between two calls, with 1, 2 and 4 processes for each of the
// two cores.
void add_cadences(std::vector<CaseSpec>& all) {
  const auto add = [&](const std::string& name, bool crowded_on_request) {
    for (const int per_core : {1, 2, 4}) {
      CaseSpec spec{.suite = "rpc",
                    .name = per_core == 1 ? name : absl::StrCat(name, "_", per_core, "_per_core"),
                    .kind = CaseKind::kCadence,
                    .members = 2 * per_core,
                    .callers = per_core,
                    .on_request = per_core > 1 && crowded_on_request};
      const CaseName parsed = parse_case(spec.name);
      spec.bytes_per_call = 2 * parsed.bytes;
      // Run longer if calls are rare, so that there are enough calls for the tail.
      spec.weight = parsed.compute_us >= 10'000 ? 3.0 : 1.0;
      all.push_back(std::move(spec));
    }
  };
  add("add2_every_200us", true);
  add("add2_every_500us", false);
  add("add2_every_2ms", false);
  add("add2_every_10ms", true);
  add("push_pull_1MiB_every_2ms", false);
}

std::vector<CaseSpec> make_cases() {
  std::vector<CaseSpec> all;
  const auto add = [&](CaseSpec spec) { all.push_back(std::move(spec)); };
  const auto sized = [&](absl::string_view suite, absl::string_view name, int ways,
                         absl::string_view plot = "") {
    const int64_t bytes = parse_case(name).bytes;
    add({.suite = std::string(suite),
         .name = std::string(name),
         .bytes_per_call = ways * bytes,
         .weight = bytes >= (16 << 20) ? 2.0 : 1.0,
         .plot = std::string(plot)});
  };
  add({.suite = "transport", .name = "ping"});
  for (const char* name : {"send_64KiB", "send_1MiB", "send_64MiB"}) sized("transport", name, 1);

  add({.suite = "rpc", .name = "null"});
  add({.suite = "rpc", .name = "add2", .plot = "echo"});
  // One call every 10 ms. Run longer, so that there are enough calls for the tail.
  add({.suite = "rpc", .name = "add2_cold", .weight = 3});
  add_cadences(all);
  for (const char* name : {"echo_4KiB", "echo_64KiB", "echo_1MiB", "echo_16MiB", "echo_64MiB"}) {
    sized("rpc", name, 2, "echo");
  }
  for (const char* name :
       {"push_1MiB", "push_64MiB", "pull_1MiB", "pull_64MiB", "lend_64MiB", "move_64MiB"}) {
    sized("rpc", name, 1);
  }
  sized("rpc", "push_pull_1MiB", 2);
  // Bytes are not counted: the time does not depend on them.
  for (const char* name : {"pass_64MiB", "pass_1GiB"}) {
    add({.suite = "rpc", .name = name, .transport = "shm"});
  }
  add({.suite = "rpc", .name = "inflight_add2", .kind = CaseKind::kInFlight, .plot = "inflight_add2"});
  add({.suite = "rpc", .name = "inflight_null", .kind = CaseKind::kInFlight, .plot = "inflight_null"});
  for (const char* name : {"stream_8B", "stream_4KiB"}) {
    add({.suite = "rpc", .name = name, .kind = CaseKind::kStream});
  }
  add({.suite = "rpc",
       .name = "oversubscribed_add2",
       .kind = CaseKind::kOversubscribed,
       .members = 4,
       .callers = 0});
  add({.suite = "rpc", .name = "queued_add2", .kind = CaseKind::kQueued, .members = 3});
  add({.suite = "rpc",
       .name = "train_step",
       .kind = CaseKind::kTrainStep,
       .members = 3,
       .callers = 2,
       .weight = 2});
  add({.suite = "rpc", .name = "idle", .kind = CaseKind::kIdle});

  add({.suite = "rref", .name = "cycle"});
  add({.suite = "rref", .name = "share", .members = 3});
  // No message is sent, so the transport does not matter.
  add({.suite = "rref", .name = "lose_1000000", .min_count = 10, .max_count = 1'000'000, .transport = "shm"});
  add({.suite = "rref", .name = "killed_peer", .kind = CaseKind::kKilledPeer, .members = 3});
  add({.suite = "rref", .name = "cut_link", .kind = CaseKind::kCutLink, .members = 3, .transport = "tcp"});
  add({.suite = "autograd", .name = "remote_add", .kind = CaseKind::kTraining});
  add({.suite = "autograd", .name = "chain_4", .kind = CaseKind::kTraining, .members = 5});
  add({.suite = "autograd", .name = "fanout_8", .kind = CaseKind::kTraining, .members = 9});
  add({.suite = "autograd", .name = "mlp_2", .kind = CaseKind::kTraining, .members = 3, .weight = 2});
  add({.suite = "store", .name = "set_get"});
  for (const int members : {8, 16, 32, 64}) {
    add({.suite = "scale",
         .name = absl::StrCat("all_to_all_", members),
         .kind = CaseKind::kFirstContact,
         .members = members,
         .callers = 0,
         .min_count = 2,
         .max_count = kMaxMembers,
         .plot = "all_to_all",
         .on_request = members > 16});
  }
  add({.suite = "scale",
       .name = "clients_1000",
       .kind = CaseKind::kClients,
       .members = kClientProcesses + 1,
       .callers = kClientProcesses,
       .min_count = kClientProcesses,
       .max_count = kMaxClients,
       .weight = 3,
       .transport = "tcp"});
  add({.suite = "security", .name = "connect"});
  add({.suite = "security", .name = "add2"});
  sized("security", "echo_1MiB", 2);
  sized("security", "echo_64MiB", 2);
  // Bytes are counted in both directions.
  add({.suite = "cuda", .name = "add2_cuda"});
  add({.suite = "cuda", .name = "echo_64MiB_cuda", .bytes_per_call = int64_t{128} << 20, .weight = 2});
  add({.suite = "cuda", .name = "remote_add_cuda"});
  add({.suite = "cuda", .name = "push_pull_cuda", .bytes_per_call = 2 << 20});
  add_collectives(all);
  return all;
}

std::vector<RoleSpec> make_roles() {
  const std::vector<std::string> both = {"shm", "tcp"};
  const std::string floor;
  // TensorPipe polls its shared memory without sleeping, so torch's processes spin.
  return {
      {"gradwire_transport", "gradwire", "", "transport", both, {}, 2},
      {"floor_futex", "floor_futex", floor, "transport", {"shm"}, {"ping"}, 2},
      {"floor_spin", "floor_spin", floor, "transport", {"shm"}, {"ping"}, 2},
      {"floor_tcp", "floor_tcp", floor, "transport", {"tcp"}, {"ping"}, 2},
      {"floor_tcp_spin", "floor_tcp_spin", floor, "transport", {"tcp"}, {"ping"}, 2},
      {"floor_memcpy", "floor_memcpy", floor, "transport", {"shm"}, {"send"}, 1},

      {"gradwire_rpc", "gradwire", "", "rpc", both, {}, 2},
      // All but streams, which torch does not have.
      {"torch_rpc",
       "torch_tensorpipe",
       "torch",
       "rpc",
       both,
       {"null",
        "add2",
        "add2_cold",
        "add2_every",
        "add2_every_per_core",
        "echo",
        "push",
        "pull",
        "lend",
        "move",
        "push_pull",
        "push_pull_every",
        "push_pull_every_per_core",
        "pass",
        "inflight_null",
        "inflight_add2",
        "oversubscribed_add2",
        "queued_add2",
        "train_step",
        "idle"},
       2,
       true},
      {"grpc",
       "grpc",
       "grpc",
       "rpc",
       {"tcp"},
       {"null", "add2", "add2_cold", "add2_every", "add2_every_per_core", "echo", "push", "pull",
        "inflight_null", "inflight_add2", "oversubscribed_add2", "stream", "idle"},
       2},
      {"floor_futex", "floor_futex", floor, "rpc", {"shm"}, {"null", "add2", "add2_cold"}, 2},
      {"floor_wake",
       "floor_wake",
       floor,
       "rpc",
       {"shm"},
       {"add2_cold", "add2_every", "add2_every_per_core"},
       2},
      {"floor_spin", "floor_spin", floor, "rpc", {"shm"}, {"null", "add2"}, 2},
      {"floor_tcp", "floor_tcp", floor, "rpc", {"tcp"}, {"null", "add2", "add2_cold", "echo"}, 2},
      {"floor_tcp_spin", "floor_tcp_spin", floor, "rpc", {"tcp"}, {"null", "add2"}, 2},
      {"floor_memcpy",
       "floor_memcpy",
       floor,
       "rpc",
       {"shm"},
       {"echo", "push", "pull", "lend", "move", "push_pull"},
       1},
      {"floor_handoff",
       "floor_handoff",
       floor,
       "rpc",
       {"shm"},
       {"echo", "push", "pull", "push_pull", "push_pull_every"},
       2},

      {"gradwire_rref", "gradwire", "", "rref", both, {"cycle", "share", "lose"}, 2},
      {"gradwire_loss", "gradwire", "", "rref", both, {"killed_peer", "cut_link"}, 3},
      {"torch_rref", "torch_tensorpipe", "torch", "rref", both, {"cycle", "share"}, 2, true},
      {"torch_loss", "torch_tensorpipe", "torch", "rref", both, {"killed_peer"}, 3, true},
      {"gradwire_autograd", "gradwire", "", "autograd", both, {}, 2},
      {"torch_autograd", "torch_tensorpipe", "torch", "autograd", both, {}, 2, true},
      {"gradwire_store", "gradwire", "", "store", {"store"}, {}, 2},
      {"torch_store", "torch_store", "torch", "store", {"store"}, {}, 2},
      {"gradwire_rpc", "gradwire", "", "scale", both, {"all_to_all"}, 2},
      {"gradwire_clients", "gradwire", "", "scale", {"tcp"}, {"clients"}, 9},
      {"torch_rpc", "torch_tensorpipe", "torch", "scale", both, {"all_to_all"}, 2, true},
      // Each system uses its own mechanism between processes of one host.
      {"gradwire_collectives", "gradwire", "", "collectives", {"host"}, {}, 2},
      {"openmpi", "openmpi", "openmpi", "collectives", {"host"}, {}, 1, false, true},
      {"gloo_collectives", "gloo", "gloo", "collectives", {"host"}, {}, 2},
      {"floor_memory", "floor_memory", floor, "collectives", {"host"}, {}, 1, false, true},
      // The cost of protected connections.
      {"gradwire_rpc", "gradwire", "", "security", {"plain", "token", "tls"}, {"add2", "echo"}, 2},
      {"gradwire_connect", "gradwire", "", "security", {"plain", "token", "tls"}, {"connect"}, 2},
      {"grpc", "grpc", "grpc", "security", {"plain", "tls"}, {"add2", "echo", "connect"}, 2},
      // Messages travel over shared memory. Each system chooses how the tensors do.
      {"gradwire_cuda", "gradwire", "", "cuda", {"shm"}, {}, 2},
      {"torch_cuda", "torch_tensorpipe", "torch", "cuda", {"shm"}, {}, 2, true},
      {"floor_cuda_copy", "floor_cuda_copy", floor, "cuda", {"shm"}, {"echo_64MiB_cuda"}, 1},
  };
}

}  // namespace

const std::vector<std::string>& suites() {
  static const auto& all = *new std::vector<std::string>{
      "transport", "rpc", "rref", "autograd", "store", "scale", "collectives", "security", "cuda"};
  return all;
}

const std::vector<CaseSpec>& cases() {
  static const auto& all = *new std::vector<CaseSpec>(make_cases());
  return all;
}

const std::vector<RoleSpec>& roles() {
  static const auto& all = *new std::vector<RoleSpec>(make_roles());
  return all;
}

std::vector<std::string> transports_of(absl::string_view suite) {
  for (const RoleSpec& role : roles()) {
    if (role.suite == suite && role.name == "gradwire") return role.transports;
  }
  return {};
}

bool supports(const RoleSpec& role, const CaseSpec& spec) {
  if (role.suite != spec.suite) return false;
  if (role.operations.empty()) return true;
  return std::find(role.operations.begin(), role.operations.end(), parse_case(spec.name).family()) !=
         role.operations.end();
}

}  // namespace gradwire::bench
