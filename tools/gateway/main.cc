// The gateway as a process beside a job: joins its group as a worker, and serves clients in any language over
// gRPC. docs/gateway.md is the guide.

#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/users_directory.h"
#include "gradwire/gateway/server.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/security/checked_file.h"

ABSL_FLAG(std::string, address, "127.0.0.1:7700",
          "HOST:PORT to listen on (port 0: a free one), or unix:PATH");
ABSL_FLAG(std::string, init_method, "env://", "how the workers of the job find each other, as in init_rpc");
ABSL_FLAG(std::string, name, "gateway", "name of this worker in the job");
ABSL_FLAG(int, rank, -1, "id of this worker; -1: the next free one");
ABSL_FLAG(int, world_size, 0, "number of workers with this one; 0: the job is an open group");
ABSL_FLAG(absl::Duration, join_timeout, absl::Seconds(60), "how long to wait for the job");
ABSL_FLAG(std::string, certificate, "", "file with the certificate for TLS (PEM)");
ABSL_FLAG(std::string, key, "", "file with the private key for TLS (PEM)");
ABSL_FLAG(std::string, client_authority, "",
          "file with the authority of clients' certificates (PEM): mutual TLS");
ABSL_FLAG(std::string, token_file, "",
          "file with the token that clients must have; not the token of the job");
ABSL_FLAG(bool, insecure, false, "listen on any address without TLS and token");
ABSL_FLAG(std::vector<std::string>, allow, {},
          "functions that may be called, for example model::*; empty: all");
ABSL_FLAG(std::vector<std::string>, allow_operators, {},
          "operators that may be called, for example aten::add");
ABSL_FLAG(uint32_t, max_calls_per_client, 256, "calls in flight of one connection");
ABSL_FLAG(uint32_t, max_calls, 16'384, "calls in flight of all clients");
ABSL_FLAG(uint32_t, max_sessions_per_client, 16, "sessions of one connection");
ABSL_FLAG(uint32_t, max_sessions, 16'384, "sessions of all clients");
ABSL_FLAG(uint32_t, max_objects_per_session, 1024, "objects in one session");
ABSL_FLAG(uint64_t, max_call_bytes, uint64_t{4} << 30, "bytes of the tensors of one call");
ABSL_FLAG(uint64_t, max_bytes_per_client, uint64_t{4} << 30, "bytes of tensors in flight of one connection");
ABSL_FLAG(uint64_t, max_bytes, uint64_t{8} << 30, "bytes of tensors in flight of all clients");
ABSL_FLAG(absl::Duration, default_timeout, absl::Seconds(60), "timeout of calls without a deadline");
ABSL_FLAG(absl::Duration, session_idle, absl::Minutes(10), "a session that is idle for this time ends");
ABSL_FLAG(absl::Duration, stall_timeout, absl::Seconds(60), "a client that stops reading or sending is cut");
ABSL_FLAG(absl::Duration, drain, absl::Seconds(5), "how long calls may run on after SIGTERM");

namespace gradwire::tools {
namespace {

std::string read_token(const std::string& path) {
  if (path.empty()) return "";
  constexpr security::FileKind kToken = {.what = "token file",
                                         .option = "--token_file",
                                         .rule = security::FileKind::Rule::kSecret,
                                         .most = 4096};
  const security::CheckedFile file = value_or_throw(security::read_checked_file(kToken, path));
  std::string token(file.content.reveal());
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty())
    throw Error(absl::InvalidArgumentError(absl::StrCat("the token file ", path, " is empty")));
  return token;
}

gateway::Options options_of_flags() {
  gateway::Options options;
  options.address = absl::GetFlag(FLAGS_address);
  options.certificate_file = absl::GetFlag(FLAGS_certificate);
  options.key_file = absl::GetFlag(FLAGS_key);
  options.client_authority_file = absl::GetFlag(FLAGS_client_authority);
  options.token = read_token(absl::GetFlag(FLAGS_token_file));
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.allow = absl::GetFlag(FLAGS_allow);
  options.allow_operators = absl::GetFlag(FLAGS_allow_operators);
  options.max_calls_per_client = absl::GetFlag(FLAGS_max_calls_per_client);
  options.max_calls = absl::GetFlag(FLAGS_max_calls);
  options.max_sessions_per_client = absl::GetFlag(FLAGS_max_sessions_per_client);
  options.max_sessions = absl::GetFlag(FLAGS_max_sessions);
  options.max_objects_per_session = absl::GetFlag(FLAGS_max_objects_per_session);
  options.max_call_bytes = absl::GetFlag(FLAGS_max_call_bytes);
  options.max_bytes_per_client = absl::GetFlag(FLAGS_max_bytes_per_client);
  options.max_bytes = absl::GetFlag(FLAGS_max_bytes);
  options.default_timeout = absl::GetFlag(FLAGS_default_timeout);
  options.session_idle = absl::GetFlag(FLAGS_session_idle);
  options.stall_timeout = absl::GetFlag(FLAGS_stall_timeout);
  options.drain = absl::GetFlag(FLAGS_drain);
  return options;
}

void serve() {
  // Blocked before any thread starts, so that all threads inherit it, and only sigwait() below takes the
  // signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  gateway::Options options = options_of_flags();
  rpc::RpcBackendOptions worker;
  worker.init_method = absl::GetFlag(FLAGS_init_method);
  worker.join_timeout = absl::GetFlag(FLAGS_join_timeout);
  std::shared_ptr<rpc::Agent> agent;
  try {
    agent = rpc::Agent::start(absl::GetFlag(FLAGS_name), absl::GetFlag(FLAGS_rank),
                              absl::GetFlag(FLAGS_world_size), std::move(worker));
  } catch (const Error& error) {
    throw Error(with_context(error.status(),
                             absl::StrCat("cannot join the job at ", absl::GetFlag(FLAGS_init_method))));
  }
  {
    gateway::Server server(agent, std::move(options));
    std::string address = absl::GetFlag(FLAGS_address);
    if (!absl::StartsWith(address, "unix:"))
      address = absl::StrCat(address.substr(0, address.rfind(':')), ":", server.port());
    std::cout << "gateway: serving at " << address << " as worker \"" << absl::GetFlag(FLAGS_name)
              << "\" of a job with " << agent->get_worker_infos().size() << " workers" << std::endl;
    int signal = 0;
    sigwait(&signals, &signal);
  }
  // Not graceful: in a group of fixed size that would wait for the job.
  agent->shutdown(/*graceful=*/absl::GetFlag(FLAGS_world_size) == 0, absl::Seconds(10));
}

}  // namespace
}  // namespace gradwire::tools

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "lets programs in any language call the workers of a Gradwire job over gRPC (docs/gateway.md)\n\n"
      "usage: gateway --init_method=tcp://HOST:PORT [--address=HOST:PORT] [flags]");
  absl::ParseCommandLine(argc, argv);
  gradwire::return_to_users_directory();
  try {
    gradwire::tools::serve();
    return 0;
  } catch (const gradwire::Error& error) {
    std::cerr << "gateway: " << error.what() << std::endl;
    return 1;
  }
}
