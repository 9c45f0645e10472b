#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {

// A kind of transport that the suite is run on.
struct TransportKind {
  // For the test's name.
  std::string name;
  std::function<std::unique_ptr<Transport>()> make;
  // Only one transport object of this kind can have both ends of a connection.
  bool within_one_object = false;
  // It asks ConnectionListener::max_message_bytes() before it allocates memory for a message.
  bool asks_listener = true;
  // An address that is none of this kind.
  std::string malformed_address = "no address";
};

// What every transport promises. A test of a new kind is one line:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance, testing::Values(TransportKind{"tcp", [] { ... }}));
class TransportConformance : public testing::TestWithParam<TransportKind> {
 protected:
  // Two ends of one connection, both established.
  struct Pair {
    std::shared_ptr<Connection> client;
    std::shared_ptr<RecordingListener> client_listener;
    std::shared_ptr<Connection> server;
    std::shared_ptr<RecordingListener> server_listener;
  };

  void SetUp() override;
  void TearDown() override;

  // The listening transport, and the one that connects (maybe the same).
  Transport& server() { return *server_; }
  Transport& client() { return client_ != nullptr ? *client_ : *server_; }
  const std::string& address() const { return address_; }

  // Connects and waits until the other end has accepted.
  Pair connect(RecordingListener::Hook server_hook = nullptr, RecordingListener::Hook client_hook = nullptr);

  // The listener of the connection that was accepted as number `index`; waits for it. nullptr if it does not
  // come.
  std::shared_ptr<RecordingListener> accepted_listener(std::size_t index);

  void shut_down_all();

 private:
  struct Accepted {
    std::shared_ptr<Connection> connection;
    std::shared_ptr<RecordingListener> listener;
  };

  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::string address_;

  Mutex mutex_;
  CondVar changed_;
  RecordingListener::Hook server_hook_ ABSL_GUARDED_BY(mutex_);
  std::vector<Accepted> accepted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
