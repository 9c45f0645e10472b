#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/free_port.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/proto/etcd.grpc.pb.h"
#include "gradwire/store/etcd_store.h"

namespace gradwire::store {

// For tests: a real etcd with one member, on a free port of the loopback interface, with its data in a folder
// of its own. It is killed when this object is destroyed, or when the thread that started it ends. Not
// thread-safe.
class EtcdProcess {
 public:
  // OK if tests with etcd can run on this machine; NotFound with the reason if they cannot.
  static absl::Status available();

  // Starts etcd and returns when it is healthy. If it does not start, the test fails. `flags` are flags of
  // etcd; `scheme` is http or https.
  explicit EtcdProcess(std::vector<std::string> flags = {}, std::string scheme = "http");
  ~EtcdProcess();

  std::string endpoint() const;
  int port() const { return port_; }
  // Kills etcd with SIGKILL. Changes that it has answered are not lost.
  void kill();
  // Ends etcd with SIGTERM, as an administrator would.
  void terminate();
  // Starts etcd again, on the same port with the same data. Returns at once.
  void start();
  // Deletes etcd's data.
  void delete_data();
  // Stops etcd with SIGSTOP. Returns when it has stopped.
  void stop();
  // Lets etcd continue after stop().
  void resume();

  // A channel to etcd's own services, without TLS.
  std::shared_ptr<grpc::Channel> channel() const;
  // Compacts etcd's history up to the current revision.
  void compact();

 private:
  void end(int signal);
  bool wait_until_healthy();
  bool healthy() const;

  const std::vector<std::string> flags_;
  const std::string scheme_;
  std::string folder_;
  int port_ = 0;
  pid_t pid_ = 0;
};

}  // namespace gradwire::store

// For a test's body or SetUp(): skips the test if etcd is not installed.
#define GRADWIRE_NEED_ETCD() GRADWIRE_NEEDS("etcd", ::gradwire::store::EtcdProcess::available())
