#pragma once

#include <memory>

#include "absl/container/inlined_vector.h"

namespace gradwire::transport {

// Messages that one thread sends in quick succession leave together, in one system call for each connection:
// while a batch exists on a thread, connections put off what it sends to the end of the batch. For a thread
// that runs several handlers in a row, each with its answer:
//
//   SendBatch batch;
//   for (Request& request : requests) run(request);
//
// What is put off leaves earlier when it becomes much, when flush() is called, or when another thread drives
// the connection's loop (base/threads/poller.h) meanwhile: so a handler may take long, or wait for an answer,
// without holding up what was sent before. Batches nest; the outermost counts. For one thread, which makes
// and destroys it; on the stack.
class SendBatch {
 public:
  // A connection that can put off sending. Called by the thread of the batch, without a lock.
  class Member {
   public:
    virtual ~Member() = default;
    virtual void flush_batch() = 0;
  };

  enum class Scope {
    kAnything,
    // Nothing that happens within waits or takes long, so that nobody needs to be able to flush in its stead.
    // For the thread that drives a loop while it calls listeners.
    kBrief,
  };

  explicit SendBatch(Scope scope = Scope::kAnything);
  ~SendBatch();
  SendBatch(const SendBatch&) = delete;
  SendBatch& operator=(const SendBatch&) = delete;

  // Sends now what this thread has put off. What it sends later is put off again. Does nothing without a
  // batch.
  static void flush();

  // For connections: the batch of this thread; nullptr if there is none.
  static SendBatch* current();
  Scope scope() const { return scope_; }
  // Makes `member` part of the batch until the next flush.
  void add(std::shared_ptr<Member> member);

 private:
  void flush_members();

  const Scope scope_;
  bool outermost_ = false;
  absl::InlinedVector<std::shared_ptr<Member>, 4> members_;
};

}  // namespace gradwire::transport
