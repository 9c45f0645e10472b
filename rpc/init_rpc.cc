#include "gradwire/rpc/init_rpc.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process/last_words.h"
#include "gradwire/rpc/agent/global_agent.h"
#include "gradwire/rpc/calls/agent_services.h"

namespace gradwire::rpc {
namespace {

struct Backends {
  Mutex mutex;
  std::vector<std::pair<std::string, BackendFactory>> list ABSL_GUARDED_BY(mutex);
};

Backends& backends() {
  static Backends* instance = [] {
    auto* made = new Backends;
    MutexLock lock(made->mutex);
    made->list.emplace_back("tensorpipe", [](const std::string& name, int rank, int world_size,
                                             const RpcBackendOptions& options) {
      return Agent::start(name, rank, world_size, options);
    });
    return made;
  }();
  return *instance;
}

// Process id of the process that called init_rpc(), for warn_of_missing_shutdown().
pid_t watched_process = 0;

// Runs at the exit of the process. If a program exits with code 0 while its worker is still a member, the
// other workers will find it dead and fail. This warning explains their errors.
void warn_of_missing_shutdown(int exit_code, void*) {
  // Do nothing in a forked child: it is not a worker, and a lock may be held by a thread that the child does
  // not have.
  if (exit_code != 0 || getpid() != watched_process) return;
  const std::shared_ptr<Agent> agent = global_agent();
  if (agent == nullptr) return;
  const std::string text =
      absl::StrCat("worker \"", agent->get_worker_info().name,
                   "\" ended without rpc::shutdown(): the other workers will report it as dead; call "
                   "shutdown() before main() returns");
  log(LogLevel::kWarning, text);
  leave_last_words(text, LastWords::kLeftItsGroup);
}

void watch_for_missing_shutdown() {
  static const bool once = [] {
    prepare_last_words();
    watched_process = getpid();
    return on_exit(&warn_of_missing_shutdown, nullptr) == 0;
  }();
  (void)once;
}

}  // namespace

BackendType register_backend(const std::string& name, BackendFactory factory) {
  MutexLock lock(backends().mutex);
  for (const auto& [taken, other] : backends().list) {
    if (taken == name)
      throw Error(absl::InvalidArgumentError(absl::StrCat("backend \"", name, "\" is registered already")));
  }
  backends().list.emplace_back(name, std::move(factory));
  return static_cast<BackendType>(backends().list.size() - 1);
}

void init_rpc(const std::string& name, int rank, int world_size, RpcBackendOptions options,
              BackendType backend) {
  BackendFactory factory;
  {
    MutexLock lock(backends().mutex);
    const std::size_t index = static_cast<std::size_t>(backend);
    if (index >= backends().list.size())
      throw Error(absl::InvalidArgumentError(
          absl::StrCat("unknown rpc backend ", index, ": register it with register_backend()")));
    // A copy: the factory runs without the lock, because starting an agent may take minutes.
    factory = backends().list[index].second;
  }
  if (std::shared_ptr<Agent> agent = global_agent()) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "init_rpc(\"", name, "\"): this process is worker \"", agent->get_worker_info().name,
        "\" already; call shutdown first, or use Agent::start for several workers in one process")));
  }
  watch_for_missing_shutdown();
  set_global_agent(factory(name, rank, world_size, options));
}

void shutdown(bool graceful, absl::Duration timeout) {
  std::shared_ptr<Agent> agent = global_agent();
  if (agent == nullptr) return;
  if (Executor::current() == agent->executor().get()) {
    agent->shutdown(graceful, timeout);  // Throws: this process stays a worker.
    return;
  }
  // Also when shutdown() throws: the agent has stopped in any case, and init_rpc() may be called again.
  // Another thread may have called shutdown() as well, and even init_rpc() since.
  struct Clear {
    const std::shared_ptr<Agent>& agent;
    ~Clear() { clear_global_agent(agent); }
  } clear{agent};
  agent->shutdown(graceful, timeout);
}

void set_rpc_timeout(absl::Duration timeout) { Agent::current()->set_rpc_timeout(timeout); }
absl::Duration get_rpc_timeout() { return Agent::current()->get_rpc_timeout(); }
void rpc_barrier(const std::vector<std::string>& names, const std::optional<absl::Duration>& timeout) {
  Agent::current()->barrier(names, timeout);
}

WorkerInfo get_worker_info() { return Agent::current()->get_worker_info(); }
WorkerInfo get_worker_info(const std::string& name) { return Agent::current()->get_worker_info(name); }
std::vector<WorkerInfo> get_worker_infos() { return Agent::current()->get_worker_infos(); }

}  // namespace gradwire::rpc
