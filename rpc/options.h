#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/rpc/flow_options.h"
#include "gradwire/rpc/membership/heartbeat_options.h"
#include "gradwire/rpc/retry_options.h"
#include "gradwire/security/limits.h"
#include "gradwire/store/store.h"

namespace gradwire::rpc {

struct AgentHooks;

// How an agent joins its group, calls and serves.
struct RpcBackendOptions {
  // How long a call may take unless its destination says otherwise. InfiniteDuration(): no limit.
  absl::Duration rpc_timeout = absl::Seconds(60);
  // Where the workers find each other (store/init_method.h).
  std::string init_method = "env://";
  // Handlers that run at a time; one that waits does not count.
  int num_worker_threads = 16;
  // Bounds the threads that handlers may occupy, waiting ones included.
  int max_worker_threads = 256;
  // Instead of init_method; then rank and world size are required.
  std::shared_ptr<store::Store> store;
  // Which ways of connecting may be used, best first; empty: all that work here, which are "shm" (to workers on the
  // same host) and "tcp". One that fails between two workers is left for the next with a line in the log. "ucx" is used
  // only where it is named, and in programs that are built with it (docs/transport.md).
  std::vector<std::string> transports;
  // Connect to every worker before init returns; else on first use.
  bool connect_at_init = false;
  // How long to wait for all workers to join.
  absl::Duration join_timeout = absl::Seconds(300);
  // How long a connection may take to be established.
  absl::Duration connect_timeout = absl::Seconds(10);
  // How it is noticed that another worker does not answer.
  HeartbeatOptions heartbeat;
  // How long threads look for what arrives before they sleep.
  WaitPolicy wait;
  // What is accepted from other processes.
  Limits limits;
  // How long shutdown waits for handlers that go on though their calls were cancelled; then it fails with
  // DeadlineExceeded that names them, and leaves their threads behind. Infinite: no limit. A graceful shutdown cancels no
  // call before its own timeout: until then it waits for handlers, and says which on standard error.
  absl::Duration handler_patience = absl::Seconds(30);
  // How much may be under way to one worker, and what becomes of a call beyond that.
  FlowOptions flow;
  // How calls of idempotent functions are made again when a connection breaks.
  RetryOptions retry;
  // Of this library's tests (rpc/agent/agent_hooks.h); programs leave it empty.
  std::shared_ptr<const AgentHooks> hooks;
};

// The name in torch.distributed.rpc.
using TensorPipeRpcBackendOptions = RpcBackendOptions;

}  // namespace gradwire::rpc
