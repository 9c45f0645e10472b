// Measures the calls of an honest worker while another process attacks the worker that it calls: it opens
// connections, sends handshakes byte by byte, or makes calls and reads no answers. The workers and the
// attacker are processes of their own. The workers have a token, and use tcp.
//
//   bazel run -c opt //tools/bench/security:attacked_caller
//
// Attackers are on other hosts; here they share the processors of the worker that they attack. They run only
// when nobody else wants a processor (SCHED_IDLE), which still delays others. So each attack is also made on
// a bystander, a worker like the callee that nobody else calls and that has the attackers' priority.
//
// The states alternate, and each is measured several times, because the machine has other work, too. Prints
// two lines like those of `bench --json` for each attack: the median over the rounds of the 99th percentile
// of add2 during the attack, beside that without it, and beside that while the bystander is attacked.

#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/tools/bench/report/statistics.h"
#include "gradwire/tools/bench/run/clocks.h"
#include "gradwire/tools/bench/security/attacks.h"
#include "gradwire/tools/bench/security/bench_security.h"

namespace gradwire::bench {

int64_t add2(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add2)
std::string large_answer() { return std::string(64 << 10, 'x'); }
GRADWIRE_RPC(large_answer)

namespace {

constexpr int kWarm = 500;
constexpr double kAim = 3;

struct Kind {
  char code;
  int64_t rate;  // Connections or calls in a second. 0: as many as possible.
  const char* name;
};
constexpr Kind kKinds[] = {{'c', 10'000, "10000_connections_a_second"},
                           {'c', 0, "connections"},
                           {'s', 0, "byte_by_byte"},
                           {'m', 100'000, "100000_unread_answers_a_second"},
                           {'m', 0, "unread_answers"}};

// The attacker reads these from its pipe.
struct Order {
  char code;  // kEnd ends the attack.
  bool bystander;
  int64_t rate;
};
constexpr char kEnd = '-';

std::shared_ptr<rpc::Agent> join(const std::string& name, const std::string& store) {
  rpc::RpcBackendOptions options;
  options.store = std::make_shared<store::FileStore>(store);
  options.transports = {"tcp"};
  options.security = security_of("token", "", 0);
  // The default is for large memories.
  options.caller_limits.max_unread_bytes = 64 << 20;
  return rpc::Agent::start(name, -1, /*world_size=*/0, options);
}

// Runs `body` in a process of its own, which ends with it.
pid_t start(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attacked_caller: %s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

struct Target {
  std::string address;
  uint64_t incarnation;
};

// Finds a worker in the log of the group.
Target find(const std::string& name, const std::string& path) {
  store::PrefixStore log("rpc", std::make_shared<store::FileStore>(path));
  for (int i = 0;; ++i) {
    proto::LogLine line;
    if (!line.ParseFromString(log.get(absl::StrCat("log/0/", i)))) throw Error(absl::DataLossError("log"));
    const proto::WorkerRecord& worker = line.join().worker();
    if (worker.name() != name) continue;
    for (const proto::Address& address : worker.addresses()) {
      if (address.transport() == "tcp") return {address.address(), worker.incarnation()};
    }
    throw Error(absl::NotFoundError(absl::StrCat(name, " has no address for tcp")));
  }
}

// The threads that are started later inherit this. (Of a process that is only nice, a thread that has begun
// keeps the processor for some milliseconds, although others want it.)
void run_only_when_idle() {
  const sched_param none = {};
  if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) throw Error(absl::InternalError("sched_setscheduler"));
}

// Follows the orders that it reads, and writes what each attack has counted. Ends at the end of the input.
void attack(const std::string& path, int in, int out) {
  run_only_when_idle();
  const auto agent = join("mallory", path);
  for (const char* name : {"callee", "bystander"}) agent->wait_for_worker(name, absl::Seconds(60));
  const Target callee = find("callee", path), bystander = find("bystander", path);
  const auto credentials = value_or_throw(security::make_credentials(security_of("token", "", 0)));
  Order order{};
  while (read(in, &order, sizeof(order)) == sizeof(order)) {
    const Target& target = order.bystander ? bystander : callee;
    Attack attack{.address = target.address, .rate = order.rate};
    const MuteCaller mute{*agent, target.incarnation, credentials,
                          rpc::callee_of_function<&large_answer>->name,
                          rpc::callee_of_function<&large_answer>->signature_hash};
    std::thread attacker([&, code = order.code] {
      if (code == 'c') open_crowd(attack);
      if (code == 's') open_slowly(attack);
      if (code == 'm') call_without_reading(attack, mute);
    });
    const bool ended = read(in, &order, sizeof(order)) == sizeof(order) && order.code == kEnd;
    attack.stop = true;
    attacker.join();
    const int64_t counted = attack.count;
    if (!ended || write(out, &counted, sizeof(counted)) != sizeof(counted)) break;
  }
  agent->shutdown(false);
}

// A worker that serves calls until the end of the input.
void serve(const std::string& name, const std::string& path, int in) {
  const auto agent = join(name, path);
  char end = 0;
  (void)!read(in, &end, 1);
  const rpc::AgentStatistics statistics = agent->statistics();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::fprintf(stderr, "%s: %d calls served, %d over a limit, at most %d MiB of memory\n", name.c_str(),
               static_cast<int>(statistics.calls_served), static_cast<int>(statistics.calls_over_limit),
               static_cast<int>(usage.ru_maxrss / 1024));
  agent->shutdown(false);
}

// Percentiles of the time of a call in one state, one for each round. Microseconds.
struct Times {
  std::vector<double> p50, p99;
};

void call_for(double seconds, Times& times) {
  std::vector<float> micros;
  for (int i = 0; i < kWarm; ++i) rpc::rpc_sync<&add2>("callee", 1, 2);
  const int64_t end = nanoseconds() + static_cast<int64_t>(seconds * 1e9);
  while (true) {
    const int64_t begin = nanoseconds();
    if (begin >= end) break;
    if (rpc::rpc_sync<&add2>("callee", 1, 2) != 3) throw Error(absl::InternalError("wrong sum"));
    micros.push_back(static_cast<float>(nanoseconds() - begin) / 1000);
  }
  times.p50.push_back(percentile(micros, 0.5));
  times.p99.push_back(percentile(micros, 0.99));
}

// The attacker has begun and has filled its places, or what it has left is gone.
void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }

void report(const Kind& kind, const Times& attacked, const char* peer, const Times& other, int64_t counted) {
  const double ratio = median(attacked.p99) / median(other.p99);
  std::printf("%s\n",
              absl::StrFormat("{\"suite\":\"security\",\"case\":\"add2_during_%s\",\"transport\":\"token\","
                              "\"metric\":\"p99_us\",\"gradwire\":%.1f,\"peer\":\"%s\",\"peer_value\":"
                              "%.1f,\"ratio\":%.2f,\"aim\":\"%s <= %.0f\",\"attacks\":%d}",
                              kind.name, median(attacked.p99), peer, median(other.p99), ratio,
                              ratio <= kAim ? "ok" : "MISS", kAim, counted)
                  .c_str());
  std::fflush(stdout);
}

void measure(int to_attacker, int from_attacker, int rounds, double seconds) {
  const auto measure_attacked = [&](const Order& order, Times& times) {
    if (write(to_attacker, &order, sizeof(order)) != sizeof(order))
      throw Error(absl::UnavailableError("the attacker has ended"));
    settle();
    call_for(seconds, times);
    const Order end{kEnd, false, 0};
    int64_t count = 0;
    if (write(to_attacker, &end, sizeof(end)) != sizeof(end) ||
        read(from_attacker, &count, sizeof(count)) != sizeof(count))
      throw Error(absl::UnavailableError("the attacker has ended"));
    settle();
    return count;
  };
  for (const Kind& kind : kKinds) {
    Times alone, bystander, attacked;
    int64_t counted = 0;
    for (int round = 0; round < rounds; ++round) {
      call_for(seconds, alone);
      measure_attacked({kind.code, true, kind.rate}, bystander);
      counted += measure_attacked({kind.code, false, kind.rate}, attacked);
      std::fprintf(stderr,
                   "%s round %d: p50 and p99 alone %.1f %.1f us, bystander attacked %.1f %.1f us, attacked "
                   "%.1f %.1f us\n",
                   kind.name, round, alone.p50.back(), alone.p99.back(), bystander.p50.back(),
                   bystander.p99.back(), attacked.p50.back(), attacked.p99.back());
    }
    report(kind, attacked, "alone", alone, counted);
    report(kind, attacked, "bystander attacked", bystander, counted);
  }
}

int run(int rounds, double seconds) {
  std::string folder = "/tmp/attacked_caller.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  // All sockets are on the loopback interface, also with a token.
  setenv("GRADWIRE_HOST_ADDRESS", "127.0.0.1", 1);
  const std::string path = folder + "/store";
  int commands[2], counts[2], ends[2];
  if (pipe(commands) != 0 || pipe(counts) != 0 || pipe(ends) != 0) return 1;
  // The processes start before this one has threads.
  const pid_t callee = start([&] {
    close(ends[1]);
    serve("callee", path, ends[0]);
  });
  const pid_t bystander = start([&] {
    run_only_when_idle();
    close(ends[1]);
    serve("bystander", path, ends[0]);
  });
  const pid_t attacker = start([&] {
    close(commands[1]);
    close(ends[1]);
    attack(path, commands[0], counts[1]);
  });
  {
    const auto agent = join("honest", path);
    rpc::AgentGuard guard(agent);
    for (const char* name : {"callee", "bystander", "mallory"})
      agent->wait_for_worker(name, absl::Seconds(60));
    measure(commands[1], counts[0], rounds, seconds);
    close(commands[1]);
    close(ends[1]);
    for (const pid_t process : {attacker, callee, bystander}) waitpid(process, nullptr, 0);
    agent->shutdown(false);
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

// attacked_caller [ROUNDS [SECONDS]]
int main(int argc, char** argv) {
  int rounds = 5;
  double seconds = 2;
  if (argc > 1 && !absl::SimpleAtoi(argv[1], &rounds)) return 2;
  if (argc > 2 && !absl::SimpleAtod(argv[2], &seconds)) return 2;
  return gradwire::bench::run(rounds, seconds);
}
