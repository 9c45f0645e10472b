#include "gradwire/rpc/device/testing/fake_devices.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc::testing {
namespace {

[[maybe_unused]] const bool kInstalled = [] {
  install_tensor_backend(&fake_backend());
  return true;
}();

}  // namespace

FakeBackend& fake_backend() {
  static auto* const backend = new FakeBackend;
  return *backend;
}

absl::StatusOr<std::string> FakeSharing::identity(const Device& device) {
  if (device == Device(kDevice)) return "the only device";
  return absl::UnavailableError(absl::StrCat(device.str(), " cannot be shared"));
}

void FakeSharing::forget(uint64_t worker) {
  MutexLock lock(mutex_);
  forgotten_.push_back(worker);
  open_ = open_after_forget_;
}

void FakeSharing::close() { closed_ = true; }

bool FakeSharing::sweep() {
  MutexLock lock(mutex_);
  if (open_ > 0) --open_;
  swept_ = open_ == 0;
  return open_ == 0;
}

std::vector<uint64_t> FakeSharing::forgotten() const {
  MutexLock lock(mutex_);
  return forgotten_;
}

struct FakeBackend::Memory {
  std::string content;
  // The sender may die while the memory is read.
  bool dies = false;
};

class FakeBackend::FakeShipment : public Shipment {
 public:
  FakeShipment(FakeBackend& backend, std::string handle, std::shared_ptr<Memory> memory)
      : backend_(backend), handle_(std::move(handle)), memory_(std::move(memory)) {}
  ~FakeShipment() override {
    if (!released_) ++backend_.counts_->dropped;
    free();
  }
  void release() override {
    EXPECT_FALSE(released_) << "released twice";
    released_ = true;
    ++backend_.counts_->released;
    free();
  }

 private:
  void free() {
    if (memory_ == nullptr) return;
    backend_.remove(handle_);
    if (!memory_->dies) memory_->content = kFreed;
    memory_ = nullptr;
  }

  FakeBackend& backend_;
  const std::string handle_;
  std::shared_ptr<Memory> memory_;
  bool released_ = false;
};

absl::Status FakeBackend::encode(const TensorSet& tensors, TensorSharing /*sharing*/,
                                 const DeviceRoute* route, proto::Payload& payload, EncodedTensors& out) {
  const std::string& content = static_cast<const FakeTensor&>(tensors).content();
  proto::Tensor& tensor = *payload.add_tensors();
  if (route == nullptr || route->transfers == nullptr ||
      !route->transfers->can_send(route->to, Device(kDevice))) {
    tensor.set_inline_data(content);
    return absl::OkStatus();
  }
  const auto memory = std::make_shared<Memory>(Memory{content, route->from == dying_});
  std::string handle;
  {
    MutexLock lock(mutex_);
    handle = absl::StrCat(++last_handle_);
    memories_.emplace(handle, memory);
  }
  GRADWIRE_ASSIGN_OR_RETURN(
      DeviceTransfers::Started started,
      route->transfers->start(route->to, std::make_unique<FakeShipment>(*this, handle, memory)));
  payload.mutable_transfer()->set_number(started.number);
  tensor.mutable_on_device()->mutable_shared()->set_handle(handle);
  out.handed_over = std::move(started.kept);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorSet>> FakeBackend::decode(const proto::Payload& payload,
                                                               std::vector<transport::Buffer> /*buffers*/,
                                                               const DeviceArrival* arrival) {
  const proto::Tensor& tensor = payload.tensors(0);
  if (!payload.has_transfer()) return std::make_unique<FakeTensor>(std::string(tensor.inline_data()));
  Reads reads = Reads::kRight;
  {
    MutexLock lock(mutex_);
    if (const auto found = reads_.find(arrival->to); found != reads_.end()) reads = found->second;
  }
  const uint64_t number = payload.transfer().number();
  GRADWIRE_RETURN_IF_ERROR(arrival->transfers->begin_read(arrival->from, number));
  absl::StatusOr<std::unique_ptr<TensorSet>> result = absl::UnavailableError("the driver cannot read it");
  const std::shared_ptr<Memory> memory = find(std::string(tensor.on_device().shared().handle()));
  if (memory == nullptr) {
    EXPECT_EQ(arrival->from, dying_) << "memory was freed before it was read";
  } else if (reads != Reads::kFail) {
    result = std::make_unique<FakeTensor>(reads == Reads::kRight ? memory->content : "wrong");
  }
  arrival->transfers->end_read(arrival->from, number);
  return result;
}

std::shared_ptr<void> FakeBackend::arrived(const proto::Payload& payload, const DeviceArrival& arrival) {
  if (!payload.has_transfer()) return nullptr;
  return arrival.transfers->arrived(arrival.from, payload.transfer().number());
}

void FakeBackend::set_reads(uint64_t worker, Reads reads) {
  MutexLock lock(mutex_);
  reads_[worker] = reads;
}

std::size_t FakeBackend::shared() const {
  MutexLock lock(mutex_);
  return memories_.size();
}

std::shared_ptr<FakeBackend::Memory> FakeBackend::find(const std::string& handle) const {
  MutexLock lock(mutex_);
  const auto found = memories_.find(handle);
  return found == memories_.end() ? nullptr : found->second;
}

void FakeBackend::remove(const std::string& handle) {
  MutexLock lock(mutex_);
  memories_.erase(handle);
}

}  // namespace gradwire::rpc::testing
