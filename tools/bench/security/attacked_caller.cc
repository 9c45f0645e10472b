// Measures the calls of an honest worker while other processes attack the worker that it calls: they open
// connections, send handshakes byte by byte, or make calls and read no answers. Each worker and the attackers
// are processes of their own. The workers have a token, and use tcp.
//
//   bazel run -c opt //tools/bench/security:attacked_caller
//
// The states alternate, and each is measured several times, because the machine has other work, too. Prints
// a line like those of `bench --json` for each attack: the median over the rounds of the 99th percentile of
// add2, alone and attacked, and their ratio, which should be at most 3.

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
#include "gradwire/rpc/agent/agent_services.h"
#include "gradwire/rpc/agent_statistics.h"
#include "gradwire/rpc/call.h"
#include "gradwire/rpc/registration.h"
#include "gradwire/security/make_credentials.h"
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

struct Attack {
  char code;
  const char* name;
};
constexpr Attack kAttacks[] = {{'c', "10000_connections"}, {'s', "byte_by_byte"}, {'m', "answers_unread"}};

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

struct Callee {
  std::string address;
  uint64_t incarnation;
};

// Finds the worker "callee" in the log of the group.
Callee find_callee(const std::string& path) {
  store::PrefixStore log("rpc", std::make_shared<store::FileStore>(path));
  for (int i = 0;; ++i) {
    proto::LogLine line;
    if (!line.ParseFromString(log.get(absl::StrCat("log/0/", i)))) throw Error(absl::DataLossError("log"));
    const proto::WorkerRecord& worker = line.join().worker();
    if (worker.name() != "callee") continue;
    for (const proto::Address& address : worker.addresses()) {
      if (address.transport() == "tcp") return {address.address(), worker.incarnation()};
    }
    throw Error(absl::NotFoundError("the callee has no address for tcp"));
  }
}

// Begins the attack whose code it reads, ends it at the next code, and writes what it has counted. Ends at
// the end of the input.
void attack(const std::string& path, int in, int out) {
  // Attackers are on other hosts, and take no time from the processors of those whom they attack. The threads
  // that are started later inherit this. (Of a process that is only nice, a thread that has begun keeps the
  // processor for some milliseconds, although others want it.)
  const sched_param none = {};
  if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) throw Error(absl::InternalError("sched_setscheduler"));
  const auto agent = join("mallory", path);
  agent->wait_for_worker("callee", absl::Seconds(60));
  const Callee callee = find_callee(path);
  const MuteCaller mute{
      *agent, callee.incarnation, value_or_throw(security::make_credentials(security_of("token", "", 0))),
      rpc::callee_of_function<&large_answer>->name, rpc::callee_of_function<&large_answer>->signature_hash};
  char code = 0;
  while (read(in, &code, 1) == 1) {
    std::atomic<bool> stop{false};
    std::atomic<int64_t> count{0};
    std::thread attacker([&, code] {
      if (code == 'c') open_crowd(callee.address, stop, count);
      if (code == 's') open_slowly(callee.address, stop, count);
      if (code == 'm') call_without_reading(callee.address, mute, stop, count);
    });
    const bool more = read(in, &code, 1) == 1;
    stop = true;
    attacker.join();
    const int64_t counted = count;
    if (!more || write(out, &counted, sizeof(counted)) != sizeof(counted)) break;
  }
  agent->shutdown(false);
}

double p99_of_calls(double seconds, std::vector<double>& medians) {
  std::vector<float> micros;
  for (int i = 0; i < kWarm; ++i) rpc::rpc_sync<&add2>("callee", 1, 2);
  const int64_t end = nanoseconds() + static_cast<int64_t>(seconds * 1e9);
  while (true) {
    const int64_t begin = nanoseconds();
    if (begin >= end) break;
    if (rpc::rpc_sync<&add2>("callee", 1, 2) != 3) throw Error(absl::InternalError("wrong sum"));
    micros.push_back(static_cast<float>(nanoseconds() - begin) / 1000);
  }
  medians.push_back(percentile(micros, 0.5));
  return percentile(micros, 0.99);
}

// The attacker has begun, and has filled its places.
void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }

void measure(int to_attacker, int from_attacker, int rounds, double seconds) {
  for (const Attack& attack : kAttacks) {
    std::vector<double> alone, attacked, alone_p50, attacked_p50;
    int64_t counted = 0;
    for (int round = 0; round < rounds; ++round) {
      alone.push_back(p99_of_calls(seconds, alone_p50));
      if (write(to_attacker, &attack.code, 1) != 1)
        throw Error(absl::UnavailableError("the attacker has ended"));
      settle();
      attacked.push_back(p99_of_calls(seconds, attacked_p50));
      int64_t count = 0;
      if (write(to_attacker, "-", 1) != 1 || read(from_attacker, &count, sizeof(count)) != sizeof(count))
        throw Error(absl::UnavailableError("the attacker has ended"));
      counted += count;
      settle();
    }
    for (std::size_t i = 0; i < alone.size(); ++i)
      std::fprintf(stderr, "%s round %d: alone p50 %.1f p99 %.1f us, attacked p50 %.1f p99 %.1f us\n",
                   attack.name, static_cast<int>(i), alone_p50[i], alone[i], attacked_p50[i], attacked[i]);
    const double ratio = median(attacked) / median(alone);
    std::printf("%s\n",
                absl::StrFormat("{\"suite\":\"security\",\"case\":\"add2_during_%s\",\"transport\":\"token\","
                                "\"metric\":\"p99_us\",\"gradwire\":%.1f,\"peer\":\"alone\",\"peer_value\":"
                                "%.1f,\"ratio\":%.2f,\"aim\":\"%s <= %.0f\",\"attacks\":%d}",
                                attack.name, median(attacked), median(alone), ratio,
                                ratio <= kAim ? "ok" : "MISS", kAim, counted)
                    .c_str());
    std::fflush(stdout);
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
    const auto agent = join("callee", path);
    char end = 0;
    (void)!read(ends[0], &end, 1);
    const rpc::AgentStatistics statistics = agent->statistics();
    std::fprintf(stderr, "callee: %d calls served, %d over a limit\n",
                 static_cast<int>(statistics.calls_served), static_cast<int>(statistics.calls_over_limit));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::fprintf(stderr, "callee: at most %d MiB of memory\n", static_cast<int>(usage.ru_maxrss / 1024));
    agent->shutdown(false);
  });
  const pid_t attacker = start([&] {
    close(commands[1]);
    close(ends[1]);
    attack(path, commands[0], counts[1]);
  });
  {
    const auto agent = join("honest", path);
    rpc::AgentGuard guard(agent);
    for (const char* name : {"callee", "mallory"}) agent->wait_for_worker(name, absl::Seconds(60));
    measure(commands[1], counts[0], rounds, seconds);
    close(commands[1]);
    close(ends[1]);
    waitpid(attacker, nullptr, 0);
    waitpid(callee, nullptr, 0);
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
