#include "gradwire/tests/gpu/two_processes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/tests/device_calls/device_kind.h"

namespace gradwire::gpu_tests {
namespace {

constexpr absl::Duration kEnd = absl::Seconds(60);

rpc::RpcBackendOptions options_for(const std::string& channel) {
  rpc::RpcBackendOptions options;
  options.channels = {channel};
  options.join_timeout = kEnd;
  return options;
}

}  // namespace

TwoProcesses::TwoProcesses(const std::string& channel) {
  store_ = std::make_shared<store::TcpStore>("127.0.0.1", 0, store::TcpStoreOptions{.is_master = true});
  child_ = std::make_unique<rpc::ChildProcess>(
      std::vector<std::string>{"/proc/self/exe", absl::StrCat(kWorkerFlag, store_->port(), ",", channel)});
  rpc::RpcBackendOptions options = options_for(channel);
  options.store = store_;
  agent_ = rpc::Agent::start("worker0", 0, 2, options);
}

TwoProcesses::~TwoProcesses() {
  if (agent_ == nullptr) return;
  try {
    agent_->shutdown(graceful_, kEnd);
  } catch (const Error& error) {
    ADD_FAILURE() << "shutdown: " << error.what();
  }
  if (graceful_) {
    EXPECT_EQ(child_->wait(), 0) << "the exit code of worker1";
  }
}

void TwoProcesses::kill() {
  graceful_ = false;
  child_->kill();
}

absl::Status find_channel(const std::string& channel) {
  rpc::RpcBackendOptions options = options_for(channel);
  options.store = std::make_shared<store::HashStore>();
  try {
    rpc::Agent::start("alone", 0, 1, options)->shutdown();
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

int run_worker(const std::string& argument) {
  const std::vector<std::string> parts = absl::StrSplit(argument, ',');
  int port = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &port)) return 2;
  try {
    device_kind::begin(2);
    rpc::RpcBackendOptions options = options_for(parts[1]);
    options.store = std::make_shared<store::TcpStore>("127.0.0.1", port);
    rpc::Agent::start("worker1", 1, 2, options)->shutdown(/*graceful=*/true, kEnd);
  } catch (const std::exception& error) {
    std::cerr << "worker1: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}

}  // namespace gradwire::gpu_tests
