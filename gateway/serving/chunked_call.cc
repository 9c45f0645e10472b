#include "gradwire/gateway/serving/chunked_call.h"

#include <optional>
#include <utility>

#include "gradwire/gateway/serving/cancel_action.h"
#include "gradwire/gateway/serving/download.h"
#include "gradwire/gateway/serving/invocation.h"
#include "gradwire/gateway/serving/reply.h"
#include "gradwire/gateway/serving/trace.h"
#include "gradwire/gateway/serving/upload.h"

namespace gradwire::gateway {
namespace {

// The steps of one call. In each of them at most one operation of gRPC is outstanding, and its end leads to
// the next step. So no step runs beside another one; only OnCancel() and the watch do.
//   1. Read parts until the client closes its direction.
//   2. Run the invocation.
//   3. Write the response and its chunks, and finish.
class ChunkedCall final : public grpc::ServerBidiReactor<v1::UploadPart, v1::DownloadPart> {
 public:
  ChunkedCall(std::shared_ptr<Core> core, grpc::CallbackServerContext& context)
      : core_(std::move(core)),
        context_(context),
        input_(std::make_unique<Invocation::Input>()),
        upload_(*input_),
        watch_(core_->stalls, [&context] { context.TryCancel(); }) {
    absl::StatusOr<Limits::Permit> permit = enter_call(*core_, context_);
    if (!permit.ok()) {
      Finish(reply_status(context_, permit.status()));
      return;
    }
    input_->permit = *std::move(permit);
    input_->deadline = deadline_of(*core_, context_);
    input_->trace = trace_of(context_);
    input_->form = CallForm::kChunked;
    read();
  }

  void OnReadDone(bool ok) override {
    watch_.disarm();
    const absl::Status status = ok ? upload_.accept(part_) : upload_.complete();
    if (!status.ok()) {
      Finish(reply_status(context_, status));
    } else if (ok) {
      read();
    } else {
      invoke();
    }
  }

  void OnWriteDone(bool ok) override {
    watch_.disarm();
    if (!ok) {
      Finish(reply_status(context_, absl::CancelledError("the client went away")));
    } else {
      write_chunk();
    }
  }

  void OnCancel() override { cancel_.run(); }
  void OnDone() override { delete this; }

 private:
  void read() {
    part_.Clear();
    watch_.arm();
    StartRead(&part_);
  }

  void invoke() {
    auto invocation = std::make_shared<Invocation>(
        core_, std::move(input_), [this](Outcome outcome) { write_response(std::move(outcome)); });
    // After either of the two this object may be deleted.
    if (cancel_.set([invocation] { invocation->cancel(); })) invocation->start();
  }

  void write_response(Outcome outcome) {
    if (!outcome.status.ok()) {
      Finish(reply_status(context_, outcome.status, std::move(outcome.detail)));
      return;
    }
    download_.start(std::move(outcome.chunked));
    down_.mutable_response()->Swap(&outcome.response);
    watch_.arm();
    StartWrite(&down_);
  }

  void write_chunk() {
    if (!download_.next(down_)) {
      Finish(grpc::Status::OK);
      return;
    }
    watch_.arm();
    StartWrite(&down_);
  }

  const std::shared_ptr<Core> core_;
  grpc::CallbackServerContext& context_;

  // Used by one step at a time.
  std::unique_ptr<Invocation::Input> input_;
  Upload upload_;
  v1::UploadPart part_;
  v1::DownloadPart down_;
  Download download_;

  CancelAction cancel_;
  Stalls::Watch watch_;
};

}  // namespace

grpc::ServerBidiReactor<v1::UploadPart, v1::DownloadPart>* serve_chunked_call(
    std::shared_ptr<Core> core, grpc::CallbackServerContext* context) {
  return new ChunkedCall(std::move(core), *context);
}

}  // namespace gradwire::gateway
