// One worker on a host of its own. partition_test starts it in a network namespace.
//   host_worker STORE_HOST STORE_PORT RUN RANK WORLD_SIZE SUSPECT_AFTER_MS DEAD_AFTER_MS
//
// It reads commands from descriptor 4, a line each, and writes a line with the result to descriptor 3. MS in
// a result is the time that the operation took.
//   command        action                                                result
//   go             join the group                                        ready
//   call NAME MS   call the worker with a timeout of MS                  called MS CODE MESSAGE
//   hold NAME MS   call a function of the worker that takes MS           held MS CODE MESSAGE
//   make NAME      create an object on the worker                        made MS CODE MESSAGE
//   fetch MS       fetch the value of that object with a timeout of MS   fetched MS CODE MESSAGE
//   end            shut down, not gracefully, and exit                   ended MS
// It also writes "state NAME STATE" when it learns that the state of a worker has changed.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/chaos/call_log.h"
#include "gradwire/tests/chaos/services.h"

namespace chaos {
namespace {

using gradwire::Future;
using gradwire::rpc::Agent;
using gradwire::rpc::Destination;
using gradwire::rpc::RpcBackendOptions;
using gradwire::rpc::RRef;
using gradwire::rpc::WorkerInfo;
using gradwire::rpc::WorkerState;

void write_line(const std::string& line) {
  const std::string text = absl::StrReplaceAll(line, {{"\n", " "}}) + "\n";
  if (::write(3, text.data(), text.size()) < 0) std::_Exit(3);
}

std::vector<std::string> read_command() {
  std::string line;
  for (char c; ::read(4, &c, 1) == 1 && c != '\n';) line += c;
  if (line.empty()) std::_Exit(3);
  return absl::StrSplit(line, ' ');
}

absl::Duration milliseconds(const std::string& text) {
  int64_t number = 0;
  (void)absl::SimpleAtoi(text, &number);
  return absl::Milliseconds(number);
}

template <class T>
void report(const std::string& word, const Future<T>& call) {
  const int64_t start = monotonic_us();
  call.on_ready_inline([word, start](const auto& result) {
    const absl::Status& status = gradwire::future_internal::status_of(result);
    write_line(absl::StrCat(word, " ", (monotonic_us() - start) / 1000, " ", static_cast<int>(status.code()),
                            " ", status.message()));
  });
}

void serve(Agent& agent) {
  RRef<Cell> cell;
  while (true) {
    const std::vector<std::string> words = read_command();
    const std::string& word = words[0];
    if (word == "end") return;
    try {
      if (word == "call") {
        report("called",
               agent.rpc_async<&add>(Destination(words[1]).with_timeout(milliseconds(words[2])), 1, 2));
      } else if (word == "hold") {
        const absl::Duration time = milliseconds(words[2]);
        report("held", agent.rpc_async<&slow>(Destination(words[1]).with_timeout(10 * time),
                                              absl::ToInt64Milliseconds(time)));
      } else if (word == "make") {
        cell = agent.remote<Cell>(words[1], int64_t{7});
        report("made", cell.handle()->created());
      } else if (word == "fetch") {
        report("fetched", cell.with_timeout(milliseconds(words[1])).to_here_async());
      }
    } catch (const gradwire::Error& error) {
      write_line(absl::StrCat(word == "make" ? "made" : word + "ed", " 0 ",
                              static_cast<int>(error.status().code()), " ", error.what()));
    }
  }
}

int run(char** argv) {
  int port = 0, rank = 0, world_size = 0;
  if (!absl::SimpleAtoi(argv[2], &port) || !absl::SimpleAtoi(argv[4], &rank) ||
      !absl::SimpleAtoi(argv[5], &world_size)) {
    return 2;
  }
  if (read_command()[0] != "go") return 2;
  RpcBackendOptions options;
  options.store = std::make_shared<gradwire::store::PrefixStore>(
      argv[3], std::make_shared<gradwire::store::TcpStore>(
                   argv[1], port, gradwire::store::TcpStoreOptions{.timeout = absl::Seconds(20)}));
  options.transports = {"tcp"};
  options.connect_at_init = true;
  options.heartbeat.interval = milliseconds(argv[6]) / 3;
  options.heartbeat.suspect_after = milliseconds(argv[6]);
  options.heartbeat.dead_after = milliseconds(argv[7]);
  const std::shared_ptr<Agent> agent = Agent::start(absl::StrCat("worker", rank), rank, world_size, options);
  const std::shared_ptr<void> subscription =
      agent->on_worker_change([](const WorkerInfo& worker, WorkerState state) {
        write_line(absl::StrCat("state ", worker.name, " ", to_string(state)));
      });
  write_line("ready");
  serve(*agent);
  const int64_t start = monotonic_us();
  agent->shutdown(/*graceful=*/false);
  write_line(absl::StrCat("ended ", (monotonic_us() - start) / 1000));
  return 0;
}

}  // namespace
}  // namespace chaos

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fputs(
        "usage: host_worker STORE_HOST STORE_PORT RUN RANK WORLD_SIZE SUSPECT_AFTER_MS DEAD_AFTER_MS\n",
        stderr);
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  try {
    return chaos::run(argv);
  } catch (const gradwire::Error& error) {
    chaos::write_line(absl::StrCat("failed ", error.what()));
    return 1;
  }
}
