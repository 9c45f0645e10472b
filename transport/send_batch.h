#pragma once

#include <memory>

#include "absl/container/inlined_vector.h"

namespace gradwire::transport {

// Combines the messages that one thread sends in quick succession, so that they need one system call per
// connection. While a batch exists on a thread, connections defer the thread's messages until the end of the
// batch. It is for a thread that runs several handlers one after the other, each of which sends an answer:
//
//   SendBatch batch;
//   for (Request& request : requests) run(request);
//
// Deferred messages are sent earlier when there are many bytes, when flush() is called, or when another
// thread drives the connection's loop (base/threads/poller.h). So a handler may take long, or wait for an
// answer, without delaying messages that were sent before. Batches nest; only the outermost one has an
// effect. A batch belongs to the thread that creates it, and must be on the stack.
class SendBatch {
 public:
  // A connection that can defer sending. Called by the thread of the batch, without a lock held.
  class Member {
   public:
    virtual ~Member() = default;
    virtual void flush_batch() = 0;
  };

  enum class Scope {
    kAnything,
    // No code inside the batch waits or takes long, so no other thread needs to be able to flush for this
    // one. For the thread that drives a loop while it calls listeners.
    kBrief,
  };

  explicit SendBatch(Scope scope = Scope::kAnything);
  ~SendBatch();
  SendBatch(const SendBatch&) = delete;
  SendBatch& operator=(const SendBatch&) = delete;

  // Sends the deferred messages of this thread now. Later messages are deferred again. Does nothing without a
  // batch.
  static void flush();

  // For connections: the batch of this thread; nullptr if it has none.
  static SendBatch* current();
  Scope scope() const { return scope_; }
  // Adds `member` to the batch until the next flush.
  void add(std::shared_ptr<Member> member);

 private:
  void flush_members();

  const Scope scope_;
  bool outermost_ = false;
  absl::InlinedVector<std::shared_ptr<Member>, 4> members_;
};

}  // namespace gradwire::transport
