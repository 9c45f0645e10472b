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

// A kind of transport that the suite tests.
struct TransportKind {
  // Used in the names of the tests.
  std::string name;
  std::function<std::unique_ptr<Transport>()> make;
  // Both ends of a connection must belong to the same transport object.
  bool within_one_object = false;
  // The transport checks ConnectionListener::max_message_bytes() before it allocates memory for a message.
  bool asks_listener = true;
  // An address that is malformed for this kind.
  std::string malformed_address = "no address";
};

// Tests the contract of all transports. A new kind is tested with one line:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance, testing::Values(TransportKind{"tcp", [] { ... }}));
class TransportConformance : public testing::TestWithParam<TransportKind> {
 protected:
  // The two ends of an established connection.
  struct Pair {
    std::shared_ptr<Connection> client;
    std::shared_ptr<RecordingListener> client_listener;
    std::shared_ptr<Connection> server;
    std::shared_ptr<RecordingListener> server_listener;
  };

  void SetUp() override;
  void TearDown() override;

  // The listening transport, and the connecting one (may be the same).
  Transport& server() { return *server_; }
  Transport& client() { return client_ != nullptr ? *client_ : *server_; }
  const std::string& address() const { return address_; }

  // Connects and waits until the server has accepted the connection.
  Pair connect(RecordingListener::Hook server_hook = nullptr, RecordingListener::Hook client_hook = nullptr);

  // Waits for the accepted connection with this index and returns its listener; nullptr after kTestTimeout.
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
