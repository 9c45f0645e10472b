// Compares one call of a mesh with a call to each of its members, in the same run. The members are processes
// of this host, which communicate over shared memory or over the transport given on the command line. Also
// prints how long the copies take that each way of sending a tensor needs.
//
//   bazel run -c opt //tools/bench:mesh_cost [-- tcp [MEMBERS]]

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/mesh.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"

namespace gradwire::bench {
namespace {

constexpr int kRounds = 9;
constexpr double kSecondsPerRound = 0.25;

// Returns the size of what it got, without reading it.
int64_t elements(const at::Tensor& x) { return x.numel(); }
GRADWIRE_RPC(elements)
double total(const at::Tensor& x) { return x.sum().item<double>(); }
GRADWIRE_RPC(total)

struct Way {
  const char* name;
  std::function<void()> step;
  std::vector<double> rounds;
};

// Runs the ways in turn, so that a change of the machine's speed concerns all of them.
void compare(const std::string& title, std::vector<Way> ways) {
  for (int round = 0; round < kRounds; ++round) {
    for (Way& way : ways) {
      way.step();
      std::vector<float> micros;
      const int64_t begin = nanoseconds();
      while (static_cast<double>(nanoseconds() - begin) < kSecondsPerRound * 1e9) {
        const int64_t start = nanoseconds();
        way.step();
        micros.push_back(static_cast<float>(nanoseconds() - start) / 1000);
      }
      way.rounds.push_back(percentile(std::move(micros), 0.5));
    }
  }
  std::printf("\n%s\n", title.c_str());
  const double first = median(ways.front().rounds);
  for (Way& way : ways) {
    const double micros = median(way.rounds);
    std::printf("  %-52s %9.1f us   %5.2f times as fast\n", way.name, micros, first / micros);
  }
  std::fflush(stdout);
}

class Caller final : public GradwireMember {
 public:
  Measurement run(const Task& /*task*/) override { return {}; }

  void measure_all() {
    std::vector<std::string> names;
    for (int i = 1; i < endpoint().size; ++i) names.push_back(absl::StrCat("w", i));
    const rpc::Mesh mesh(names, {}, agent());
    for (const int64_t kib : {1, 64, 1024, 16 * 1024}) {
      const at::Tensor x = at::full({kib * 256}, 1.0, at::kFloat);
      const std::string size = kib < 1024 ? absl::StrCat(kib, " KiB") : absl::StrCat(kib / 1024, " MiB");
      calls<&elements>(size + ", not read by the handlers", mesh, x, true);
      calls<&total>(size + ", added up by the handlers", mesh, x, false);
    }
    copies(mesh.size());
  }

 private:
  template <auto F>
  void calls(const std::string& title, const rpc::Mesh& mesh, const at::Tensor& x, bool with_broadcast) {
    std::vector<Way> ways = {{"rpc_async to each member",
                              [&] {
                                std::vector<decltype(agent()->rpc_async<F>("", x))> all;
                                for (const std::string& name : mesh.names())
                                  all.push_back(agent()->rpc_async<F>(name, x));
                                for (const auto& one : all) (void)one.wait();
                              },
                              {}},
                             {"rpc_sync to each member in turn",
                              [&] {
                                for (const std::string& name : mesh.names())
                                  (void)agent()->rpc_sync<F>(name, x);
                              },
                              {}},
                             {"mesh.call", [&] { (void)mesh.call<F>(x).values(); }, {}},
                             {"mesh.call_async", [&] { (void)mesh.call_async<F>(x).wait().values(); }, {}}};
    if (with_broadcast) ways.push_back({"mesh.broadcast", [&] { (void)mesh.broadcast(x); }, {}});
    compare(absl::StrCat(mesh.size(), " members, ", title), std::move(ways));
  }

  // The copies alone: one for each member, or one for all of them.
  static void copies(std::size_t members) {
    std::vector<char> from(1 << 20, 'x');
    std::vector<std::vector<char>> to(members, from);
    compare("1 MiB, copied by one thread into warm memory",
            {{"once for each member",
              [&] {
                for (std::vector<char>& copy : to) std::memcpy(copy.data(), from.data(), from.size());
              },
              {}},
             {"once", [&] { std::memcpy(to[0].data(), from.data(), from.size()); }, {}}});
  }
};

int run(const std::string& transport, int members) {
  int address[2];
  if (pipe(address) != 0) throw std::runtime_error("pipe");
  std::vector<pid_t> others;
  Endpoint endpoint{.rank = 0, .size = members + 1, .transport = transport, .addresses = {}};
  for (int rank = 1; rank <= members; ++rank) {
    const pid_t other = fork();
    if (other < 0) throw std::runtime_error("fork");
    if (other > 0) {
      others.push_back(other);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    at::set_num_threads(1);
    Caller member;
    // Each member reads one record of this size.
    char text[64] = {};
    if (read(address[0], text, sizeof text) != sizeof text) return 1;
    endpoint.rank = rank;
    endpoint.addresses = {text};
    member.join(endpoint);
    while (true) pause();
  }
  at::set_num_threads(1);
  Caller caller;
  endpoint.addresses = {caller.listen(endpoint)};
  char text[64] = {};
  if (endpoint.addresses[0].size() >= sizeof text) throw std::runtime_error("the address is too long");
  std::memcpy(text, endpoint.addresses[0].data(), endpoint.addresses[0].size());
  for (int rank = 1; rank <= members; ++rank) {
    if (write(address[1], text, sizeof text) != sizeof text) throw std::runtime_error("write");
  }
  caller.join(endpoint);
  caller.measure_all();
  for (const pid_t other : others) kill(other, SIGKILL);
  for (const pid_t other : others) waitpid(other, nullptr, 0);
  // End as a process of the bench does, without destructors: the group cannot be shut down, because the other
  // processes were killed.
  std::fflush(stdout);
  _exit(0);
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  try {
    int members = 8;
    if (argc > 2 && (!absl::SimpleAtoi(argv[2], &members) || members < 1 || members > 64))
      throw std::runtime_error("MEMBERS must be a number from 1 to 64");
    return gradwire::bench::run(argc > 1 ? argv[1] : "shm", members);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mesh_cost: %s\n", error.what());
    return 1;
  }
}
