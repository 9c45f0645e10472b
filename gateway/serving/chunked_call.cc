#include "gradwire/gateway/serving/chunked_call.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/gateway/serving/cancel_action.h"
#include "gradwire/gateway/serving/core.h"
#include "gradwire/gateway/serving/invocation.h"
#include "gradwire/gateway/serving/reply.h"
#include "gradwire/gateway/serving/trace.h"
#include "gradwire/proto/gateway.pb.h"
#include "gradwire/security/limits.h"

namespace gradwire::gateway {
namespace {

// Receives the arguments of a call with chunks (proto/gateway.proto, "Chunks"). Every message comes from a
// client and is checked before memory is allocated or written. Not thread-safe.
class Upload {
 public:
  // `input` must outlive the upload. Its permit is set.
  explicit Upload(Invocation::Input& input) : input_(input) {}

  // The next message; its contents may be taken. InvalidArgument if it is not the one that must come next,
  // and ResourceExhausted if the tensors are larger than a limit.
  absl::Status accept(v1::UploadPart& part);
  // The client has closed its direction: InvalidArgument if something is missing.
  absl::Status complete() const;

 private:
  struct Chunked {
    const v1::Tensor* tensor = nullptr;
    uint64_t size = 0;
  };

  absl::Status accept_request(v1::CallRequest& request);
  absl::Status accept_chunk(const v1::Chunk& chunk);
  absl::Status find_chunked(const v1::Value& value, int depth);
  // Goes on to the next tensor that has bytes left.
  void skip_complete();

  Invocation::Input& input_;
  bool has_request_ = false;
  std::vector<Chunked> tensors_;
  std::size_t current_ = 0;
  uint64_t offset_ = 0;
};

absl::Status Upload::accept(v1::UploadPart& part) {
  switch (part.part_case()) {
    case v1::UploadPart::kRequest:
      if (has_request_)
        return absl::InvalidArgumentError("unexpected message: got a second request, expected a chunk");
      return accept_request(*part.mutable_request());
    case v1::UploadPart::kChunk:
      return accept_chunk(part.chunk());
    case v1::UploadPart::PART_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "unexpected message: got an UploadPart without a request and without a chunk");
}

absl::Status Upload::accept_request(v1::CallRequest& request) {
  if (request.ByteSizeLong() > kMaxUnaryBytes) {
    return limit_error("the request is too large: send the bytes of its tensors in chunks", "max_unary_bytes",
                       "CallChunked", kMaxUnaryBytes);
  }
  has_request_ = true;
  input_.request.Swap(&request);
  for (const v1::Value& value : input_.request.arguments()) GRADWIRE_RETURN_IF_ERROR(find_chunked(value, 1));
  for (const v1::Keyword& keyword : input_.request.keywords()) {
    GRADWIRE_RETURN_IF_ERROR(find_chunked(keyword.value(), 1));
  }
  // All sizes are known and within the limits before the first allocation.
  if (tensors_.empty()) return absl::OkStatus();
  TensorBridge* const bridge = tensor_bridge();
  if (bridge == nullptr) return absl::UnimplementedError("this gateway was linked without libtorch");
  for (const Chunked& chunked : tensors_) {
    transport::Buffer memory;
    if (chunked.size > 0) {
      GRADWIRE_ASSIGN_OR_RETURN(memory, bridge->allocate(chunked.size));
    }
    input_.uploaded.emplace(chunked.tensor, std::move(memory));
  }
  skip_complete();
  return absl::OkStatus();
}

absl::Status Upload::find_chunked(const v1::Value& value, int depth) {
  if (depth > kMaxValueDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("an argument is nested too deep: expected at most ", kMaxValueDepth, " levels"));
  }
  const auto all = [&](const auto& values) -> absl::Status {
    for (const v1::Value& each : values) GRADWIRE_RETURN_IF_ERROR(find_chunked(each, depth + 1));
    return absl::OkStatus();
  };
  switch (value.kind_case()) {
    case v1::Value::kTensor: {
      if (!value.tensor().chunked()) return absl::OkStatus();
      GRADWIRE_ASSIGN_OR_RETURN(uint64_t size, checked_bytes(value.tensor()));
      GRADWIRE_RETURN_IF_ERROR(input_.permit.add_bytes(size));
      tensors_.push_back({&value.tensor(), size});
      return absl::OkStatus();
    }
    case v1::Value::kList:
      return all(value.list().values());
    case v1::Value::kTuple:
      return all(value.tuple().values());
    case v1::Value::kMap:
      GRADWIRE_RETURN_IF_ERROR(all(value.map().keys()));
      return all(value.map().values());
    default:
      return absl::OkStatus();
  }
}

void Upload::skip_complete() {
  while (current_ < tensors_.size() && offset_ == tensors_[current_].size) {
    ++current_;
    offset_ = 0;
  }
}

absl::Status Upload::accept_chunk(const v1::Chunk& chunk) {
  if (!has_request_)
    return absl::InvalidArgumentError("unexpected message: got a chunk, expected the request first");
  if (current_ == tensors_.size()) {
    return absl::InvalidArgumentError("unexpected chunk: all tensors of the request are complete");
  }
  if (chunk.tensor() != current_ || chunk.offset() != offset_) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected chunk: got tensor ", chunk.tensor(),
                                                   " at offset ", chunk.offset(), ", expected tensor ",
                                                   current_, " at offset ", offset_));
  }
  const std::size_t size = chunk.data().size();
  const uint64_t left = tensors_[current_].size - offset_;
  if (size == 0 || size > kMaxChunkBytes || size > left) {
    return absl::InvalidArgumentError(absl::StrCat("wrong length of a chunk: got ", size,
                                                   " bytes, expected 1 to ",
                                                   left < kMaxChunkBytes ? left : kMaxChunkBytes));
  }
  char* const memory = static_cast<char*>(input_.uploaded[tensors_[current_].tensor].data());
  std::memcpy(memory + offset_, chunk.data().data(), size);
  offset_ += size;
  skip_complete();
  return absl::OkStatus();
}

absl::Status Upload::complete() const {
  if (!has_request_)
    return absl::InvalidArgumentError("the client closed its direction without sending a request");
  if (current_ == tensors_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the client closed its direction too early: tensor ",
                                                 current_, " has ", offset_, " of ", tensors_[current_].size,
                                                 " bytes"));
}

}  // namespace

void Download::start(std::vector<TensorBytes> tensors) {
  tensors_ = std::move(tensors);
  current_ = 0;
  offset_ = 0;
}

bool Download::next(v1::DownloadPart& part) {
  while (current_ < tensors_.size() && offset_ == tensors_[current_].bytes.size()) {
    tensors_[current_++].bytes = transport::Buffer();
    offset_ = 0;
  }
  if (current_ == tensors_.size()) return false;
  const transport::Buffer& bytes = tensors_[current_].bytes;
  const std::size_t size = std::min<std::size_t>(kMaxChunkBytes, bytes.size() - offset_);
  v1::Chunk& chunk = *part.mutable_chunk();
  chunk.set_tensor(static_cast<uint32_t>(current_));
  chunk.set_offset(offset_);
  chunk.set_data(static_cast<const char*>(bytes.data()) + offset_, size);
  offset_ += size;
  return true;
}

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
    absl::StatusOr<Quotas::Permit> permit = enter_call(*core_, context_);
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
    step([this, ok] {
      watch_.disarm();
      const absl::Status status = ok ? upload_.accept(part_) : upload_.complete();
      if (!status.ok()) {
        Finish(reply_status(context_, status));
      } else if (ok) {
        read();
      } else {
        invoke();
      }
    });
  }

  void OnWriteDone(bool ok) override {
    step([this, ok] {
      watch_.disarm();
      if (!ok) {
        Finish(reply_status(context_, absl::CancelledError("the client went away")));
      } else {
        write_chunk();
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
    at_boundary("a step of a call with chunks", run,
                [this](const absl::Status& error) { Finish(reply_status(context_, error)); });
  }

  void read() {
    part_.Clear();
    watch_.arm();
    StartRead(&part_);
  }

  void invoke() {
    auto invocation = std::make_shared<Invocation>(core_, std::move(input_), [this](Outcome outcome) {
      step([&] { write_response(std::move(outcome)); });
    });
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
