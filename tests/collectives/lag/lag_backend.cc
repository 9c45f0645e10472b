#include "gradwire/tests/collectives/lag/lag_backend.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/collectives/streams/stream_point.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/device/streams.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/tests/device/core/stream.h"
#include "gradwire/tests/device/lag_device.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr c10::DeviceType kLag = c10::DeviceType::PrivateUse1;

// A tensor's memory as a tensor of the CPU. A kernel must not keep the tensor itself.
struct View {
  explicit View(const at::Tensor& tensor)
      : data(tensor.data_ptr()), sizes(tensor.sizes().vec()), dtype(tensor.scalar_type()) {}
  at::Tensor on_host() const { return at::from_blob(data, sizes, at::TensorOptions().dtype(dtype)); }

  void* data;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
};

Tensors on_host(const std::vector<View>& views) {
  Tensors tensors;
  for (const View& view : views) tensors.push_back(view.on_host());
  return tensors;
}

// The result of an operation, written by its kernel.
class Result {
 public:
  void set(const absl::Status& status) {
    MutexLock lock(mutex_);
    status_ = status;
  }
  absl::Status get() const {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class LagWork final : public Enqueued {
 public:
  LagWork(StreamPoint end, std::shared_ptr<Result> result)
      : end_(std::move(end)), result_(std::move(result)) {}
  std::optional<absl::Status> ended() const override {
    if (!end_.passed()) return std::nullopt;
    return result_->get();
  }
  void order_current_stream() override { end_.block_current(); }

 private:
  const StreamPoint end_;
  const std::shared_ptr<Result> result_;
};

class LagGroup final : public GroupBackend {
 public:
  explicit LagGroup(std::shared_ptr<GroupBackend> host) : host_(std::move(host)) {}

  absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) override {
    return enqueue({tensor}, [=](GroupBackend& host, const Tensors& on_host) {
      return host.broadcast(on_host[0], root, deadline);
    });
  }
  absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) override {
    return enqueue({tensor}, [=](GroupBackend& host, const Tensors& on_host) {
      return host.reduce(on_host[0], root, op, deadline);
    });
  }
  absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) override {
    return enqueue({tensor}, [=](GroupBackend& host, const Tensors& on_host) {
      return host.all_reduce(on_host[0], op, deadline);
    });
  }
  absl::Status gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) override {
    return enqueue(with(outputs, tensor), [=](GroupBackend& host, Tensors on_host) {
      const at::Tensor own = take_last(on_host);
      return host.gather(own, std::move(on_host), root, deadline);
    });
  }
  absl::Status all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) override {
    return enqueue(with(outputs, tensor), [=](GroupBackend& host, Tensors on_host) {
      const at::Tensor own = take_last(on_host);
      return host.all_gather(own, std::move(on_host), deadline);
    });
  }
  absl::Status scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) override {
    return enqueue(with(inputs, tensor), [=](GroupBackend& host, Tensors on_host) {
      const at::Tensor own = take_last(on_host);
      return host.scatter(own, std::move(on_host), root, deadline);
    });
  }
  absl::Status reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                              absl::Time deadline) override {
    return enqueue(with(inputs, output), [=](GroupBackend& host, Tensors on_host) {
      const at::Tensor own = take_last(on_host);
      return host.reduce_scatter(own, std::move(on_host), op, deadline);
    });
  }
  absl::Status all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) override {
    Tensors all = outputs;
    all.insert(all.end(), inputs.begin(), inputs.end());
    const auto half = static_cast<std::ptrdiff_t>(outputs.size());
    return enqueue(all, [=](GroupBackend& host, const Tensors& on_host) {
      return host.all_to_all({on_host.begin(), on_host.begin() + half},
                             {on_host.begin() + half, on_host.end()}, deadline);
    });
  }
  absl::Status barrier(absl::Time deadline) override { return host_->barrier(deadline); }
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) override {
    const absl::Status status = enqueue_in(lag::new_stream(tensor.device().index()), {tensor},
                                           [=](GroupBackend& host, const Tensors& on_host) {
                                             return host.send(on_host[0], dst, tag, deadline).result();
                                           });
    return status.ok() ? Future<void>(absl::OkStatus()) : Future<void>(status);
  }
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override {
    const absl::Status status = enqueue_in(
        lag::new_stream(tensor.device().index()), {tensor}, [=](GroupBackend& host, const Tensors& on_host) {
          return host.receive(on_host[0], src, tag, deadline).result().status();
        });
    return status.ok() ? Future<int>(src) : Future<int>(status);
  }
  void abort(const absl::Status& reason) override { host_->abort(reason); }
  std::unique_ptr<Enqueued> take_enqueued() override { return std::exchange(last_, nullptr); }

 private:
  using Run = std::function<absl::Status(GroupBackend& host, Tensors on_host)>;

  static Tensors with(Tensors list, const at::Tensor& last) {
    list.push_back(last);
    return list;
  }
  static at::Tensor take_last(Tensors& list) {
    const at::Tensor last = list.back();
    list.pop_back();
    return last;
  }

  // Runs `run` in the backend's stream, with the tensors' memory, after the work in the caller's current
  // stream.
  absl::Status enqueue(const Tensors& tensors, Run run) {
    const c10::Device device = tensors.front().device();
    if (!stream_.has_value()) stream_ = lag::new_stream(device.index());
    return enqueue_in(*stream_, tensors, std::move(run));
  }
  absl::Status enqueue_in(c10::Stream stream, const Tensors& tensors, Run run) {
    const c10::Device device = stream.device();
    const StreamPoint called = StreamPoint::of_current(device);
    const c10::StreamGuard guard(stream);
    called.block_current();
    std::vector<View> views;
    for (const at::Tensor& tensor : tensors) {
      device::record_use(tensor, stream);
      views.emplace_back(tensor);
    }
    auto result = std::make_shared<Result>();
    auto* const queue =
        static_cast<lag::Stream*>(c10::impl::VirtualGuardImpl(kLag).getStreamNativeHandle(stream));
    GRADWIRE_RETURN_IF_ERROR(queue->launch([host = host_, views = std::move(views), run = std::move(run),
                                            result] { result->set(run(*host, on_host(views))); }));
    last_ = std::make_unique<LagWork>(StreamPoint::of_current(device), std::move(result));
    return absl::OkStatus();
  }

  const std::shared_ptr<GroupBackend> host_;
  std::optional<c10::Stream> stream_;
  static thread_local std::unique_ptr<Enqueued> last_;
};

thread_local std::unique_ptr<Enqueued> LagGroup::last_;

absl::StatusOr<std::unique_ptr<GroupBackend>> make(const BackendContext& context) {
  BackendContext own = context;
  own.store = std::make_shared<store::PrefixStore>("lag", context.store);
  own.group = context.group + "/lag";
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<GroupBackend> host, testing::make_local_backend(own));
  return std::make_unique<LagGroup>(std::move(host));
}

}  // namespace

void use_lag_backend() { register_accelerator_backend({kLag, "lag", &make}); }

}  // namespace gradwire::collectives
