#include "gradwire/rpc/testing/scripted_worker.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/time/clock.h"
#include "gradwire/base/random_id.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::rpc::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

}  // namespace

bool ScriptedLink::send(const proto::Envelope& envelope) {
  return connection_->send({envelope.SerializeAsString(), {}}).ok();
}

bool ScriptedLink::answer(const proto::Request& request, const absl::Status& status) {
  proto::Envelope envelope;
  envelope.mutable_response()->set_call_id(request.call_id());
  if (!status.ok()) status_to_proto(status, *envelope.mutable_response()->mutable_status());
  return send(envelope);
}

bool ScriptedLink::answer(const proto::Request& request, const std::string& body) {
  proto::Envelope envelope;
  envelope.mutable_response()->set_call_id(request.call_id());
  envelope.mutable_response()->set_body(body);
  return send(envelope);
}

void ScriptedLink::close() { connection_->close(absl::CancelledError("closed by the script")); }

std::vector<proto::Envelope> ScriptedLink::all() {
  std::vector<proto::Envelope> envelopes;
  for (const transport::Message& message : listener_->wait_for_messages(0)) {
    EXPECT_TRUE(envelopes.emplace_back().ParseFromString(message.header));
  }
  return envelopes;
}

proto::Envelope ScriptedLink::wait_for(const Matches& matches, std::size_t from) {
  while (true) {
    const std::vector<transport::Message> messages = listener_->wait_for_messages(from + 1);
    if (messages.size() <= from) break;
    for (; from < messages.size(); ++from) {
      proto::Envelope envelope;
      EXPECT_TRUE(envelope.ParseFromString(messages[from].header));
      if (matches(envelope)) return envelope;
    }
  }
  ADD_FAILURE() << "the message that the script waits for did not arrive";
  return {};
}

proto::Request ScriptedLink::wait_for_service(uint32_t service, std::size_t from) {
  return wait_for(
             [service](const proto::Envelope& envelope) {
               return envelope.request().service().number() == service;
             },
             from)
      .request();
}

proto::Response ScriptedLink::wait_for_response(uint64_t call_id) {
  return wait_for([call_id](const proto::Envelope& envelope) {
           return envelope.has_response() && envelope.response().call_id() == call_id;
         })
      .response();
}

ScriptedWorker::ScriptedWorker(Network& network, std::shared_ptr<store::Store> store, const std::string& name)
    : store_(std::make_shared<store::PrefixStore>("rpc", std::move(store))),
      transport_(network.transport()),
      directory_(store_),
      self_{name, -1, random_id()} {
  proto::WorkerRecord record;
  record.set_name(name);
  record.set_id(-1);
  record.set_incarnation(self_.incarnation);
  auto address = transport_->listen([this](const std::shared_ptr<transport::Connection>& connection) {
    auto listener = std::make_shared<transport::RecordingListener>();
    MutexLock lock(mutex_);
    accepted_.push_back(std::make_shared<ScriptedLink>(connection, listener));
    greeted_.push_back(false);
    changed_.notify_all();
    return listener;
  });
  EXPECT_TRUE(address.ok()) << address.status();
  proto::Address& entry = *record.add_addresses();
  entry.set_transport("tcp");
  entry.set_address(*address);
  auto group = directory_.join(self_, 0, record, kTimeout, [](const proto::WorkerRecord&, absl::Duration) {
    return Directory::Life::kUnknown;
  });
  EXPECT_TRUE(group.ok()) << group.status();
  if (!group.ok()) return;
  self_ = group->self;
  const absl::Status follows = directory_.follow(*this);
  EXPECT_TRUE(follows.ok()) << follows;
}

ScriptedWorker::~ScriptedWorker() {
  // The new line in the log wakes the directory's reader, so that stop() need not wait until its poll ends.
  (void)directory_.leave();
  directory_.stop();
  transport_->shutdown();
}

proto::Envelope ScriptedWorker::hello(uint64_t to_incarnation) {
  proto::Envelope envelope;
  proto::Hello& hello = *envelope.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_id(self_.id);
  hello.set_name(self_.name);
  hello.set_incarnation(self_.incarnation);
  hello.set_to_incarnation(to_incarnation);
  hello.set_connection(++last_number_);
  return envelope;
}

std::shared_ptr<ScriptedLink> ScriptedWorker::open(const Agent& agent) {
  // Find the record that the agent wrote into the log.
  for (uint64_t line = 0;; ++line) {
    auto text = store_->try_get(absl::StrCat("log/0/", line), absl::ZeroDuration());
    proto::LogLine parsed;
    if (!text.ok() || !parsed.ParseFromString(*text)) break;
    if (parsed.join().worker().incarnation() != agent.services().self().incarnation) continue;
    for (const proto::Address& address : parsed.join().worker().addresses()) {
      if (address.transport() != "tcp") continue;
      auto listener = std::make_shared<transport::RecordingListener>();
      auto connection = transport_->connect(address.address(), listener, kTimeout);
      if (connection.ok()) return std::make_shared<ScriptedLink>(*connection, listener);
    }
  }
  ADD_FAILURE() << "no address of " << agent.services().self().name << " in the log of the group";
  return nullptr;
}

std::shared_ptr<ScriptedLink> ScriptedWorker::connect(const Agent& agent) {
  std::shared_ptr<ScriptedLink> link = open(agent);
  link->send(hello(agent.services().self().incarnation));
  (void)link->wait_for([](const proto::Envelope& envelope) { return envelope.has_hello(); });
  return link;
}

std::shared_ptr<ScriptedLink> ScriptedWorker::accepted(std::size_t index) {
  std::shared_ptr<ScriptedLink> link;
  bool greet = false;
  {
    const absl::Time deadline = absl::Now() + kTimeout;
    MutexLock lock(mutex_);
    while (accepted_.size() <= index && absl::Now() < deadline) {
      changed_.wait_for(mutex_, deadline - absl::Now());
    }
    if (accepted_.size() <= index) {
      ADD_FAILURE() << "no agent connected to " << self_.name << " within " << kTimeout;
      return nullptr;
    }
    link = accepted_[index];
    greet = !greeted_[index];
    greeted_[index] = true;
  }
  if (greet) {
    (void)link->wait_for([](const proto::Envelope& envelope) { return envelope.has_hello(); });
    link->send(hello());
  }
  return link;
}

void ScriptedWorker::declare_dead(const Worker& worker) {
  directory_.declare_dead(worker, Directory::Knowledge::kProof, "declared dead by the script");
}

void ScriptedWorker::leave() { EXPECT_TRUE(directory_.leave().ok()); }

}  // namespace gradwire::rpc::testing
