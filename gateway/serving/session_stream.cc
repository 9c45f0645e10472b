#include "gradwire/gateway/serving/session_stream.h"

#include <optional>
#include <utility>

#include "gradwire/base/log/contained.h"
#include "gradwire/gateway/serving/reply.h"

namespace gradwire::gateway {
namespace {

class SessionStream;

// Grants the right to call Finish() once. A stream lives at least until its Finish(), so the holder of the
// right may use the stream. Outlives it.
struct Ending {
  explicit Ending(SessionStream& owner) : stream(&owner) {}
  SessionStream* const stream;
  Mutex mutex;
  bool writing ABSL_GUARDED_BY(mutex) = false;
  bool granted ABSL_GUARDED_BY(mutex) = false;
  // The end that comes after the write in progress.
  std::optional<absl::Status> later ABSL_GUARDED_BY(mutex);
};

class SessionStream final : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent> {
 public:
  SessionStream(std::shared_ptr<Core> core, grpc::CallbackServerContext& context)
      : core_(std::move(core)), context_(context), ending_(std::make_shared<Ending>(*this)) {
    absl::Status status = authenticate(*core_, context_);
    if (status.ok()) {
      absl::StatusOr<Quotas::Permit> permit = core_->limits.enter_session(context_.peer());
      status = permit.status();
      if (permit.ok()) permit_ = *std::move(permit);
    }
    if (!status.ok()) {
      end(ending_, std::move(status));
      return;
    }
    {
      MutexLock lock(ending_->mutex);
      ending_->writing = true;
    }
    session_ =
        core_->sessions.open([ending = ending_](absl::Status reason) { end(ending, std::move(reason)); });
    event_.mutable_opened()->set_session(session_->id());
    StartWrite(&event_);
    StartRead(&request_);
  }

  void OnWriteDone(bool) override {
    std::optional<absl::Status> later;
    {
      MutexLock lock(ending_->mutex);
      ending_->writing = false;
      later = std::move(ending_->later);
    }
    if (later) finish(*later);
  }

  void OnReadDone(bool ok) override {
    at_boundary(
        "a step of a session",
        [this, ok] {
          if (ok) {
            core_->sessions.touch(*session_);
            StartRead(&request_);
            return;
          }
          // The client has closed its direction, or is gone.
          core_->sessions.end(session_->id());
          end(ending_, absl::OkStatus());
        },
        // The right to end may have been granted already.
        [this](absl::Status error) { end(ending_, std::move(error)); });
  }

  void OnDone() override { delete this; }

 private:
  static void end(const std::shared_ptr<Ending>& ending, absl::Status reason) {
    {
      MutexLock lock(ending->mutex);
      if (std::exchange(ending->granted, true)) return;
      if (ending->writing) {
        ending->later = std::move(reason);
        return;
      }
    }
    ending->stream->finish(reason);
  }
  void finish(const absl::Status& reason) {
    at_boundary(
        "the end of a session", [&] { Finish(reply_status(context_, reason)); },
        [this](const absl::Status& error) { Finish(reply_status(context_, error)); });
  }

  const std::shared_ptr<Core> core_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Ending> ending_;
  Quotas::Permit permit_;
  std::shared_ptr<Session> session_;
  v1::SessionEvent event_;
  v1::SessionRequest request_;
};

}  // namespace

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* serve_session(
    std::shared_ptr<Core> core, grpc::CallbackServerContext* context) {
  return new SessionStream(std::move(core), *context);
}

}  // namespace gradwire::gateway
