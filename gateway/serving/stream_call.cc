#include "gradwire/gateway/serving/stream_call.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/gateway/serving/cancel_action.h"
#include "gradwire/gateway/serving/chunked_call.h"
#include "gradwire/gateway/serving/invocation.h"
#include "gradwire/gateway/serving/reply.h"
#include "gradwire/gateway/serving/results.h"
#include "gradwire/gateway/serving/trace.h"
#include "gradwire/gateway/values/tensors.h"
#include "gradwire/gateway/values/utf8.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/streams/stream_batch.h"
#include "gradwire/rpc/streams/stream_reader.h"

namespace gradwire::gateway {
namespace {

// Reads a stream of a worker whose items have a type that this program need not know. Thread-safe; one
// next() at a time.
class ItemStream final : public rpc::StreamReader {
 public:
  // One item, as it travels between workers.
  struct Item {
    // The answer that contains the item, with its tensors and references.
    std::shared_ptr<rpc::IncomingPayload> answer;
    proto::Value value;
  };
  // nullopt after the last item.
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::optional<Item>>)>;

  using StreamReader::StreamReader;

  // Calls `done` with the next item, at once or on the thread that receives it. Does not block.
  void next(Done done);

 private:
  static absl::StatusOr<std::optional<Item>> item_of(const Next& next);
  // Asks the worker for more items, on the executor, because sending may block.
  void refill();
};

absl::StatusOr<std::optional<ItemStream::Item>> ItemStream::item_of(const Next& next) {
  if (next.batch == nullptr) {
    if (!next.status.ok()) return next.status;
    return std::nullopt;
  }
  proto::Value unpacked;
  return Item{{next.batch, &next.batch->in},
              rpc::stream_internal::item_at(*next.batch->values, next.index, unpacked)};
}

void ItemStream::next(Done done) {
  bool room = false;
  const std::optional<Next> there = try_next(room);
  if (room) refill();
  if (there) {
    done(item_of(*there));
    return;
  }
  wait([done = std::move(done)](const Next& next) mutable { done(item_of(next)); });
}

void ItemStream::refill() {
  const auto self = std::static_pointer_cast<ItemStream>(shared_from_this());
  const std::shared_ptr<Executor> tasks = executor();
  if (tasks == nullptr || !tasks->post_clean([self] { self->send_takes(); })) {
    close(absl::UnavailableError("the gateway's worker shuts down"));
  }
}

// How far the worker may be ahead of the client.
constexpr uint64_t kWindowItems = 256;
constexpr uint64_t kWindowBytes = uint64_t{1} << 20;

// The steps of one call. One step leads to the next, so none runs beside another one; only OnCancel() and the
// watch do.
//   1. Run the invocation, whose result is the stream.
//   2. Wait for an item.
//   3. Write it as a response and its chunks, and go on with step 2. After the last item, finish.
class StreamCall final : public grpc::ServerWriteReactor<v1::DownloadPart> {
 public:
  StreamCall(std::shared_ptr<Core> core, grpc::CallbackServerContext& context, v1::CallRequest& request)
      : core_(std::move(core)),
        context_(context),
        callee_(request.has_method() ? request.method().name() : request.function()),
        watch_(core_->stalls, [&context] { context.TryCancel(); }) {
    absl::StatusOr<Quotas::Permit> permit = enter_call(*core_, context_);
    if (!permit.ok()) {
      Finish(reply_status(context_, permit.status()));
      return;
    }
    auto input = std::make_unique<Invocation::Input>();
    input->request.Swap(&request);
    input->deadline = deadline_of(*core_, context_);
    input->trace = trace_of(context_);
    input->permit = *std::move(permit);
    input->form = CallForm::kStream;
    auto invocation = std::make_shared<Invocation>(
        core_, std::move(input), [this](Outcome outcome) { step([&] { begin(std::move(outcome)); }); });
    // After either of the two this object may be deleted.
    if (cancel_.set([invocation] { invocation->cancel(); })) invocation->start();
  }

  void OnWriteDone(bool ok) override {
    step([this, ok] {
      watch_.disarm();
      if (!ok) {
        end(absl::CancelledError("the client went away"));
      } else if (download_.next(down_)) {
        write();
      } else {
        permit_.drop_bytes(std::exchange(item_bytes_, 0));
        read();
      }
    });
  }

  void OnCancel() override {
    run_contained("the cancellation of a call", [this] { cancel_.run(); });
  }
  void OnDone() override { delete this; }

 private:
  // Runs a step. An exception ends the call with an error: each step calls gRPC last.
  template <class F>
  void step(F&& run) {
    at_boundary("a step of a stream", run, [this](const absl::Status& error) { end(error); });
  }

  static absl::Status cancelled_by_client() { return absl::CancelledError("cancelled by the client"); }

  // Only the client's own deadline ends the whole stream. The default timeout bounds each wait for an item.
  rpc::StreamReader::Options options() const {
    rpc::StreamReader::Options options;
    options.window_items = kWindowItems;
    options.window_bytes = window_bytes_;
    options.item_timeout = core_->options.default_timeout;
    if (context_.deadline() != std::chrono::system_clock::time_point::max()) {
      options.total_timeout = deadline_of(*core_, context_) - Clock::system().now();
      options.item_timeout = options.total_timeout;
    }
    return options;
  }

  void begin(Outcome outcome) {
    if (!outcome.status.ok()) {
      Finish(reply_status(context_, outcome.status, std::move(outcome.detail)));
      return;
    }
    Outcome::Stream& result = outcome.stream;
    worker_ = outcome.response.worker();
    type_ = std::move(result.item);
    session_ = std::move(result.session);
    permit_ = std::move(result.permit);
    // The arguments are gone. The items that wait for the client count for it.
    permit_.drop_bytes();
    window_bytes_ = std::min(kWindowBytes, core_->options.max_call_bytes / 4);
    if (absl::Status status = permit_.add_bytes(window_bytes_); !status.ok()) {
      end(status);
      return;
    }
    const std::string& stream_type = result.handle->type();
    rpc::StreamReader::Take take = {
        rpc::stream_internal::take_name(stream_type),
        stable_hash(rpc::stream_internal::take_signature(type_.name)),
    };
    stream_ = std::make_shared<ItemStream>(core_->agent, std::move(result.handle), std::move(take),
                                           printable(callee_), options());
    cancel_.set([stream = stream_] { stream->close(cancelled_by_client()); });
    read();
  }

  void read() {
    // The last item ends this call, which may be deleted before next() returns.
    const std::shared_ptr<ItemStream> stream = stream_;
    stream->next([this](absl::StatusOr<std::optional<ItemStream::Item>> item) {
      step([&] {
        if (!item.ok()) {
          end(item.status());
        } else if (!item->has_value()) {
          end(absl::OkStatus());
        } else {
          write_item(**item);
        }
      });
    });
  }

  void write_item(ItemStream::Item& item) {
    down_.Clear();
    std::vector<TensorBytes> chunked;
    ResultReader source(*item.answer, permit_, session_.get(), &chunked);
    absl::Status status = source.read(item.value, type_, worker_, *down_.mutable_response());
    if (!status.ok()) {
      end(std::move(status));
      return;
    }
    item_bytes_ = source.bytes();
    download_.start(std::move(chunked));
    write();
  }

  void write() {
    watch_.arm();
    StartWrite(&down_);
  }

  // After it this object may be deleted.
  void end(const absl::Status& status) {
    // The reader of a stream that has ended has no reference to it any more; otherwise the stream is dropped.
    if (const std::shared_ptr<ItemStream> stream = stream_) stream->close(cancelled_by_client());
    v1::ErrorDetail detail;
    detail.set_callee(callee_);
    detail.set_worker(worker_);
    Finish(reply_status(context_, status, std::move(detail)));
  }

  const std::shared_ptr<Core> core_;
  grpc::CallbackServerContext& context_;
  const std::string callee_;

  // Used by one step at a time.
  std::string worker_;
  Type type_;
  SessionUse session_;
  Quotas::Permit permit_;
  std::shared_ptr<ItemStream> stream_;
  uint64_t window_bytes_ = 0;
  uint64_t item_bytes_ = 0;
  v1::DownloadPart down_;
  Download download_;

  CancelAction cancel_;
  Stalls::Watch watch_;
};

}  // namespace

grpc::ServerWriteReactor<v1::DownloadPart>* serve_stream_call(std::shared_ptr<Core> core,
                                                              grpc::CallbackServerContext* context,
                                                              const v1::CallRequest* request) {
  // gRPC does not use the request after this, and destroys it later.
  return new StreamCall(std::move(core), *context, *const_cast<v1::CallRequest*>(request));
}

}  // namespace gradwire::gateway
