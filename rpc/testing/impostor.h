#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/security/credentials.h"
#include "gradwire/store/interface/store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"

// Parts of tests of peers that do not follow the protocol.
namespace gradwire::rpc {

// The tcp address that the worker with this id has published in the log of its group, which has so many
// members.
inline std::string tcp_address_of(store::Store& store, int id, int members) {
  store::PrefixStore log("rpc", std::shared_ptr<store::Store>(std::shared_ptr<void>(), &store));
  for (int i = 0; i < members; ++i) {
    proto::LogLine line;
    EXPECT_TRUE(line.ParseFromString(log.get(absl::StrCat("log/0/", i))));
    if (line.join().worker().id() != id) continue;
    for (const proto::Address& address : line.join().worker().addresses()) {
      if (address.transport() == "tcp") return address.address();
    }
  }
  ADD_FAILURE() << "worker " << id << " has published no address of tcp";
  return "";
}

// A Hello in the name of `from`. `connection`: a number that no other connection of that worker has.
inline proto::Envelope hello_of(const Agent& from, const Agent& to, uint64_t connection) {
  const Worker& self = from.services().self();
  proto::Envelope envelope;
  envelope.mutable_hello()->set_protocol_version(kProtocolVersion);
  envelope.mutable_hello()->set_id(self.id);
  envelope.mutable_hello()->set_name(self.name);
  envelope.mutable_hello()->set_incarnation(self.incarnation);
  envelope.mutable_hello()->set_to_incarnation(to.services().self().incarnation);
  envelope.mutable_hello()->set_connection(connection);
  return envelope;
}

// A process that connects to the address of an agent and sends what the test says.
class Impostor {
 public:
  explicit Impostor(std::string address)
      : address_(std::move(address)),
        // The agents advertise an address of the network.
        transport_(transport::make_tcp_transport({.credentials = security::insecure_credentials()})) {}
  ~Impostor() { transport_->shutdown(); }

  void open() {
    listener_ = std::make_shared<transport::RecordingListener>();
    auto connection = transport_->connect(address_, listener_, absl::Seconds(30));
    ASSERT_TRUE(connection.ok());
    connection_ = *connection;
  }
  bool send(const std::string& header, std::vector<transport::Buffer> buffers = {}) {
    return connection_->send({header, std::move(buffers)}).ok();
  }
  void close() {
    connection_->close(absl::CancelledError("done"), absl::Seconds(1));
    (void)listener_->wait_closed();
  }
  transport::RecordingListener& listener() { return *listener_; }

 private:
  const std::string address_;
  std::unique_ptr<transport::Transport> transport_;
  std::shared_ptr<transport::RecordingListener> listener_;
  std::shared_ptr<transport::Connection> connection_;
};

}  // namespace gradwire::rpc
