#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

// Answers the questions of observers (proto/inspect.proto). Implementations are thread-safe.
class ObserverSink {
 public:
  virtual ~ObserverSink() = default;
  // Whether the observer with this name may connect. PermissionDenied if a rule denies it. Called on threads
  // of the transports, so it must not block.
  virtual absl::Status may_observe(const std::string& name) = 0;
  // Returns the answer to the body of a request. InvalidArgument if the body is malformed.
  virtual absl::StatusOr<std::string> inspect(const std::string& body) = 0;
};

// The observers of one worker, by the numbers of their links. Bounds their number, the rate of their
// questions, and the answers that they do not read. Thread-safe.
class Observers {
 public:
  // A link, as this class needs it.
  struct From {
    uint64_t link = 0;
    // Bytes of answers that the transport has not sent.
    std::size_t queued_bytes = 0;
    // Ends the link. Called at most once, on any thread, without locks.
    std::function<void()> leave;
  };

  // Bytes of unread answers at which an observer is sent away.
  static constexpr std::size_t kMaxQueuedBytes = std::size_t{8} << 20;
  // An observer that was silent for this long makes room for another one.
  static constexpr absl::Duration kIdle = absl::Seconds(30);
  // Minimum time between two answers to one observer. It is longer after an answer that has taken longer: an
  // observer may use half of the time of the thread that answers it.
  static constexpr absl::Duration kPause = absl::Milliseconds(50);

  // The clock measures how long answers take. It must outlive this object.
  explicit Observers(const Clock& clock = Clock::system()) : clock_(clock) {}

  // Until this is called, all observers are refused. `sink` must outlive this object. Call it before admit().
  void serve(ObserverSink& sink, std::size_t limit) {
    sink_ = &sink;
    limit_ = limit;
  }

  // Handles the Hello or a question of an observer, which Handshake has checked. Returns the message to send,
  // or nullopt for a question that answer() must answer. An error ends the link: those of the sink for a
  // Hello; ResourceExhausted if there are too many observers, or if this one does not read its answers.
  // `self`: the worker that is observed. Does not block.
  absl::StatusOr<std::optional<proto::Envelope>> receive(const Worker& self, From from,
                                                         const proto::Envelope& message, absl::Time now);
  // Reads the state of the worker, which may take long, and returns the message to send. Until then other
  // questions on the same link are refused.
  proto::Envelope answer(const Worker& self, uint64_t link, const proto::Envelope& question);
  // The link has ended. Does nothing if it is not the link of an observer.
  void remove(uint64_t link);
  std::size_t size() const;

 private:
  absl::Status admit(From from, const std::string& name, absl::Time now);
  // ResourceExhausted if a question comes too soon after the last one.
  absl::Status may_ask(uint64_t link, absl::Time now);

  const Clock& clock_;
  // Set once.
  ObserverSink* sink_ = nullptr;
  std::size_t limit_ = 0;

  mutable Mutex mutex_;
  struct Entry {
    // The time of the last answer, or of the admission.
    absl::Time active;
    // The time after `active` in which the next question comes too soon. Infinite while one is being
    // answered.
    absl::Duration pause;
    std::function<void()> leave;
  };
  HashMap<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
