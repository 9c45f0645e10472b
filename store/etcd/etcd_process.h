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

// For tests: a real etcd of one member, on a free port of the loopback interface, with its data in a folder
// of its own. Dies with this object, or with the thread that started it. Not thread-safe.
class EtcdProcess {
 public:
  // OK if tests with etcd can run on this machine; NotFound with the reason if they cannot.
  static absl::Status available();

  // Returns when it answers; a test that it does not start fails. `flags` are etcd's; `scheme`: http or
  // https.
  explicit EtcdProcess(std::vector<std::string> flags = {}, std::string scheme = "http");
  ~EtcdProcess();

  std::string endpoint() const;
  int port() const { return port_; }
  // At once. What it answered is written.
  void kill();
  // As an administrator would.
  void terminate();
  // Again, on the same port with the same data. Returns at once.
  void start();
  // Its data goes.
  void forget();
  // Returns when it has stopped.
  void stop();
  void carry_on();

  // Etcd's own services, without TLS.
  std::shared_ptr<grpc::Channel> channel() const;
  // Forgets what keys were before now.
  void compact();

 private:
  void end(int signal);
  bool answers();
  bool healthy() const;

  const std::vector<std::string> flags_;
  const std::string scheme_;
  std::string folder_;
  int port_ = 0;
  pid_t pid_ = 0;
};

}  // namespace gradwire::store

// In a test's body or SetUp(): leaves it if there is no etcd.
#define GRADWIRE_NEED_ETCD() GRADWIRE_NEEDS("etcd", ::gradwire::store::EtcdProcess::available())
