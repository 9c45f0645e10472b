#include "gradwire/rpc/link/sign_of_life.h"

#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/transport/refused.h"

namespace gradwire::rpc {

using Life = Joining::Life;

namespace {

// Waits for the answer of one address: a message, or the end of the connection.
class SignOfLife : public transport::ConnectionListener {
 public:
  void on_message(transport::Connection&, transport::Message message) override {
    EnvelopeBox envelope;
    const bool other_incarnation = envelope->ParseFromString(message.header) && envelope->has_goodbye() &&
                                   absl::IsAborted(status_from_proto(envelope->goodbye().reason()));
    end(other_incarnation ? Life::kDead : Life::kAlive);
  }
  uint64_t max_message_bytes() const override { return Link::kMaxHelloBytes; }
  void on_closed(transport::Connection&, absl::Status reason) override {
    // A connection that ends for another reason proves nothing.
    end(transport::is_refused(reason) ? Life::kDead : Life::kUnknown);
  }

  Life wait(absl::Duration timeout) {
    const absl::Time deadline = Clock::system().now() + timeout;
    MutexLock lock(mutex_);
    while (!ended_ && Clock::system().now() < deadline) {
      changed_.wait_for(mutex_, deadline - Clock::system().now());
    }
    return life_;
  }

 private:
  void end(Life life) {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    life_ = life;
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Life life_ ABSL_GUARDED_BY(mutex_) = Life::kUnknown;
};

}  // namespace

Life check_life(const Transports& transports, const std::string& asker, const proto::WorkerRecord& record,
                absl::Duration timeout) {
  // A liveness query: a Hello with incarnation 0, which an agent answers with a Goodbye.
  EnvelopeBox envelope;
  proto::Hello& hello = *envelope->mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_name(asker);
  hello.set_to_incarnation(record.incarnation());
  int tried = 0, refused = 0;
  for (const auto& transport : transports) {
    for (const proto::Address& address : record.addresses()) {
      if (address.transport() != transport->name() || transport->name() == "loopback" ||
          !transport->may_reach(address.address())) {
        continue;
      }
      ++tried;
      // Shared, because the connection may end after this loop has moved on.
      auto sign = std::make_shared<SignOfLife>();
      auto connection = transport->connect(address.address(), sign, timeout);
      // Counts as tried and not refused, so the result is not kDead.
      if (!connection.ok()) continue;
      (void)(*connection)->send({envelope->SerializeAsString(), {}});
      const Life life = sign->wait(timeout);
      (*connection)->close(absl::CancelledError("the liveness query is over"));
      if (life == Life::kAlive) return life;
      if (life == Life::kDead) ++refused;
    }
  }
  // The worker is dead only if every address refuses: a single refusal may mean that this route does not lead
  // to the worker.
  return tried > 0 && refused == tried ? Life::kDead : Life::kUnknown;
}

}  // namespace gradwire::rpc
