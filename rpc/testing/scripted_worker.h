#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/codec/id.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/rpc/testing/network.h"
#include "gradwire/transport/recording_listener.h"

namespace gradwire::rpc::testing {

// One connection of a ScriptedWorker with an agent. The test sends the messages and reads the received ones.
// Thread-safe.
class ScriptedLink {
 public:
  ScriptedLink(std::shared_ptr<transport::Connection> connection,
               std::shared_ptr<transport::RecordingListener> listener)
      : connection_(std::move(connection)), listener_(std::move(listener)) {}

  bool send(const proto::Envelope& envelope);
  // Answers a request of the agent with a status, or with success and `body`.
  bool answer(const proto::Request& request, const absl::Status& status = absl::OkStatus());
  bool answer(const proto::Request& request, const std::string& body);
  void close();
  bool is_closed() { return listener_->closed_count() > 0; }

  // Waits for the first message with index `from` or later that matches, and returns it. If the link closes
  // first, or no such message arrives in time, the test fails and the result is an empty envelope.
  using Matches = std::function<bool(const proto::Envelope&)>;
  proto::Envelope wait_for(const Matches& matches, std::size_t from = 0);
  proto::Request wait_for_service(uint32_t service, std::size_t from = 0);
  proto::Response wait_for_response(uint64_t call_id);
  // Number of messages received so far, and the messages.
  std::size_t count() { return listener_->message_count(); }
  std::vector<proto::Envelope> all();

 private:
  const std::shared_ptr<transport::Connection> connection_;
  const std::shared_ptr<transport::RecordingListener> listener_;
};

// A member of a group whose messages the test writes. It joins through the store as an agent does, and then
// does nothing by itself. Thread-safe, except hello() and connect(), which number the connections.
class ScriptedWorker : public Directory::Listener {
 public:
  ScriptedWorker(Network& network, std::shared_ptr<store::Store> store, const std::string& name);
  ~ScriptedWorker() override;

  const Worker& self() const { return self_; }
  Id id(uint64_t counter) const { return {self_.incarnation, counter}; }

  // Returns the Hello for the next connection. Each call takes the next connection number.
  proto::Envelope hello(uint64_t to_incarnation = 0);
  // Opens a connection to the agent, without sending anything on it.
  std::shared_ptr<ScriptedLink> open(const Agent& agent);
  // Opens a connection to the agent, and exchanges the Hellos.
  std::shared_ptr<ScriptedLink> connect(const Agent& agent);
  // Waits for the connection with this index that an agent opened, answers its Hello and returns it.
  std::shared_ptr<ScriptedLink> accepted(std::size_t index);

  // Write a line to the group's log.
  void declare_dead(const Worker& worker);
  void leave();

  void on_joined(const WorkerAddress&) override {}
  void on_left(const Worker&) override {}
  void on_died(const Worker&, const std::string&, const std::string&) override {}
  void on_store_lost(const absl::Status&, bool) override {}
  void on_store_back() override {}

 private:
  const std::shared_ptr<store::Store> store_;
  const std::unique_ptr<transport::Transport> transport_;
  Directory directory_;
  Worker self_;
  uint64_t last_number_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<ScriptedLink>> accepted_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> greeted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc::testing
