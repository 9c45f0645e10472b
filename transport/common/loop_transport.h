#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/acceptor.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// The common part of transports that use an event loop: a thread that drives the loop if no other thread
// does, the listening socket, and the shutdown. `Context` is the state that the transport shares with its
// connections; it has `options.wait`, `loop`, `ended` and shut_down_in_loop(). Thread-safe.
template <class Context>
class LoopTransport : public Transport {
 public:
  std::string name() const final { return name_; }

  void shutdown() final {
    bool first;
    std::vector<std::shared_ptr<Acceptor>> acceptors;
    {
      MutexLock lock(mutex_);
      first = !shut_down_;
      shut_down_ = true;
      acceptors = std::move(acceptors_);
      if (!started_) return;
    }
    if (first) {
      context_->loop->post([context = context_, acceptors = std::move(acceptors)] {
        for (const std::shared_ptr<Acceptor>& acceptor : acceptors) acceptor->stop_in_loop();
        context->shut_down_in_loop();
      });
    }
    MutexLock lock(joining_);
    context_->loop->run_until([this] { return context_->ended.load(); });
    own_thread_.end();
  }

 protected:
  LoopTransport(std::string name, std::shared_ptr<Context> context)
      : context_(std::move(context)), name_(std::move(name)) {}
  ~LoopTransport() override { shutdown(); }

  // Creates the resources of the transport, including the loop. Called until it has succeeded once.
  virtual absl::Status prepare(LoopThread& own_thread) {
    return own_thread.provide(context_->loop, context_->options.wait);
  }

  // Ensures that the loop is driven. Unavailable after shutdown().
  absl::Status start() {
    MutexLock lock(mutex_);
    return start_locked();
  }

  // Accepts connections on `socket`, or on all `sockets`. FailedPrecondition for a second call.
  absl::Status accept_on(Descriptor socket, const Acceptor::OnSocket& on_socket) {
    std::vector<Descriptor> sockets;
    sockets.push_back(std::move(socket));
    return accept_on(std::move(sockets), on_socket);
  }
  absl::Status accept_on(std::vector<Descriptor> sockets, const Acceptor::OnSocket& on_socket) {
    std::vector<std::shared_ptr<Acceptor>> acceptors;
    {
      MutexLock lock(mutex_);
      if (!acceptors_.empty()) {
        return absl::FailedPreconditionError(
            absl::StrCat("listen() was called twice on the ", name_, " transport"));
      }
      GRADWIRE_RETURN_IF_ERROR(start_locked());
      for (Descriptor& socket : sockets) {
        acceptors.push_back(std::make_shared<Acceptor>(context_->loop, std::move(socket), on_socket));
      }
      acceptors_ = acceptors;
    }
    context_->loop->post([acceptors = std::move(acceptors)] {
      // Others would wait for a listener that never accepts.
      run_or_end("the start of a listener", [&] {
        for (const std::shared_ptr<Acceptor>& acceptor : acceptors) acceptor->start_in_loop();
      });
    });
    return absl::OkStatus();
  }

  // Posts `step`, which begins to connect `connection`, and returns `connection`. An exception of the step
  // ends the connection.
  template <class C, class F>
  absl::StatusOr<std::shared_ptr<Connection>> begin(std::shared_ptr<C> connection, F step) {
    GRADWIRE_RETURN_IF_ERROR(start());
    if (!connection->post(std::move(step))) return shut_down_error();
    return connection;
  }

  absl::Status shut_down_error() const {
    return absl::UnavailableError(absl::StrCat("the ", name_, " transport has shut down"));
  }

  const std::shared_ptr<Context> context_;

 private:
  absl::Status start_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (shut_down_) return shut_down_error();
    if (started_) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(prepare(own_thread_));
    started_ = true;
    return absl::OkStatus();
  }

  const std::string name_;
  // Drives the loop if no other thread does. It is started with mutex_ held and joined with joining_ held.
  LoopThread own_thread_;

  Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Acceptor>> acceptors_ ABSL_GUARDED_BY(mutex_);
  // Held while the thread is joined, so that a concurrent shutdown() does not return before the first one.
  Mutex joining_;
};

}  // namespace gradwire::transport
