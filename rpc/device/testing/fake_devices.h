#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"

// Devices without libtorch, for tests of the channel "ipc" (rpc/device/ipc_channel.h). Every worker of a test
// has the device "cuda:0", and all of them mean the same physical device.
namespace gradwire::rpc::testing {

inline constexpr char kDevice[] = "cuda:0";

// A tensor, which is only its content.
class FakeTensor : public TensorSet {
 public:
  explicit FakeTensor(std::string content) : content_(std::move(content)) {}
  std::size_t size() const override { return 1; }
  const std::string& content() const { return content_; }

 private:
  const std::string content_;
};

// As the real DeviceSharing, it does nothing with tensors. It counts its calls. Thread-safe.
class FakeSharing : public DeviceSharing {
 public:
  // `open`: how often sweep() finds something that is still in use after each forget().
  explicit FakeSharing(int open = 0) : open_after_forget_(open) {}

  absl::StatusOr<std::string> identity(const Device& device) override;
  void forget(uint64_t worker) override;
  void close() override;
  bool sweep() override;

  std::vector<uint64_t> forgotten() const;
  bool closed() const { return closed_; }
  // Whether a sweep has found nothing left.
  bool swept() const { return swept_; }

 private:
  const int open_after_forget_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> swept_{false};
  mutable Mutex mutex_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
};

// The memory of devices of all workers, and the codec for FakeTensors. The content of a shared tensor is not
// synchronised by anything except the protocol: its sender overwrites it when the transfer has ended, and the
// receiver reads it between begin_read() and end_read(). So a transfer that ends too early is a data race, or
// is read as kFreed. One object serves the process: tensor_backend(). Thread-safe.
class FakeBackend : public TensorBackend {
 public:
  static constexpr char kFreed[] = "freed";

  using TensorBackend::decode;
  using TensorBackend::encode;
  // With route->transfers the tensor is shared, if can_send() allows it. Otherwise it becomes bytes.
  absl::Status encode(const TensorSet& tensors, TensorSharing sharing, const DeviceRoute* route,
                      proto::Payload& payload, EncodedTensors& out) override;
  absl::StatusOr<std::unique_ptr<TensorSet>> decode(const proto::Payload& payload,
                                                    std::vector<transport::Buffer> buffers,
                                                    const DeviceArrival* arrival) override;
  std::shared_ptr<void> arrived(const proto::Payload& payload, const DeviceArrival& arrival) override;
  std::vector<Device> accelerators() override { return {Device(kDevice)}; }
  std::unique_ptr<StreamScope> enter_pool_streams() override { return nullptr; }
  std::shared_ptr<HandlerStreams> make_handler_streams() override { return nullptr; }
  StreamFencePtr record_fence(const TensorSet& /*tensors*/) override { return nullptr; }
  std::unique_ptr<TensorSet> keep(const TensorSet& /*tensors*/) override { return nullptr; }
  std::shared_ptr<void> register_agent(uint64_t /*incarnation*/) override { return nullptr; }
  std::unique_ptr<DeviceSharing> share_devices(std::vector<Device> /*devices*/) override { return nullptr; }

  // This worker's memory may be gone while another one reads it, as if its process had ended. By default no
  // worker does that: then reading such memory fails the test.
  void let_die(uint64_t worker) { dying_ = worker; }
  // Reads of shared memory by this worker return wrong bytes, or fail.
  enum class Reads { kRight, kWrongBytes, kFail };
  void set_reads(uint64_t worker, Reads reads);

  // Shipments in existence; those that were ended by release(), and those that were only destroyed.
  std::size_t shared() const;
  uint64_t released() const { return counts_->released; }
  uint64_t dropped() const { return counts_->dropped; }

 private:
  struct Memory;
  class FakeShipment;
  struct Counts {
    std::atomic<uint64_t> released{0};
    std::atomic<uint64_t> dropped{0};
  };

  // nullptr if the memory is gone.
  std::shared_ptr<Memory> find(const std::string& handle) const;
  void remove(const std::string& handle);

  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::atomic<uint64_t> dying_{0};
  mutable Mutex mutex_;
  uint64_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  HashMap<std::string, std::shared_ptr<Memory>> memories_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, Reads> reads_ ABSL_GUARDED_BY(mutex_);
};

// The backend of the process, which is installed when the program starts.
FakeBackend& fake_backend();

}  // namespace gradwire::rpc::testing
