#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/device/device_transfer.h"
#include "gradwire/tests/device/core/memory.h"
#include "gradwire/tests/device/core/shared_event.h"
#include "gradwire/tests/device/lag_ipc.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

std::atomic<int64_t> opened_memories{0};
std::atomic<int64_t> memories_ever{0};
std::atomic<int64_t> copies{0};

struct MemoryHandle {
  int32_t process;
  int32_t file;
  uint64_t offset;
};

// Errors of libtorch's interface become a status.
template <class F>
auto guarded(F f) -> decltype(f()) try {
  return f();
} catch (...) {
  return absl::UnavailableError(status_from_exception(std::current_exception()).message());
}

class OpenedMemory : public device::OpenedMemory {
 public:
  OpenedMemory(void* mapping, size_t mapped, std::byte* data)
      : mapping_(mapping), mapped_(mapped), data_(data) {
    ++opened_memories;
    ++memories_ever;
  }
  ~OpenedMemory() override {
    ::munmap(mapping_, mapped_);
    --opened_memories;
  }
  void* data() const override { return data_; }

 private:
  void* const mapping_;
  const size_t mapped_;
  std::byte* const data_;
};

class TransferEvent : public device::SharedEvent {
 public:
  explicit TransferEvent(std::unique_ptr<lag::SharedEvent> event) : event_(std::move(event)) {}
  const std::string& handle() const override { return event_->handle(); }
  absl::Status record(const c10::Stream& stream) override {
    return guarded([&] { return event_->record(stream_of(stream)); });
  }
  absl::Status block(const c10::Stream& stream) override {
    return guarded([&] { return event_->block(stream_of(stream)); });
  }

 private:
  const std::unique_ptr<lag::SharedEvent> event_;
};

absl::StatusOr<std::unique_ptr<device::SharedEvent>> wrap(
    absl::StatusOr<std::unique_ptr<lag::SharedEvent>> event) {
  if (!event.ok()) return event.status();
  return std::make_unique<TransferEvent>(*std::move(event));
}

class Transfer : public device::DeviceTransfer {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  absl::StatusCode meaning(int error) const override {
    if (error == kOutOfMemory) return absl::StatusCode::kResourceExhausted;
    return error == kLost ? absl::StatusCode::kInternal : absl::StatusCode::kUnknown;
  }

  // GRADWIRE_LAG_IDENTITY: the prefix of the names of this process's devices.
  absl::StatusOr<std::string> identity(c10::Device device) override {
    if (ipc_faults().no_identity) return absl::UnavailableError("the driver does not know the device's name");
    const char* prefix = std::getenv("GRADWIRE_LAG_IDENTITY");
    return absl::StrCat(prefix == nullptr ? "LAG-" : prefix, int{device.index()});
  }

  // GRADWIRE_LAG_NO_SHARING: as IpcFaults::no_sharing.
  absl::Status can_share(c10::Device) override {
    return ipc_faults().no_sharing || std::getenv("GRADWIRE_LAG_NO_SHARING") != nullptr
               ? absl::UnavailableError("the driver has no support for sharing")
               : absl::OkStatus();
  }

  absl::StatusOr<device::SharedMemory> share(c10::Device device, const void* data) override {
    if (ipc_faults().no_export) return absl::UnavailableError("the driver refuses to export memory");
    const Memory& memory = accelerator().memory(index_of(device));
    const Block* block = memory.find(data);
    if (block == nullptr) return absl::UnavailableError("the memory is not an allocation of the device");
    const auto* start = static_cast<const std::byte*>(block->data());
    const MemoryHandle handle{::getpid(), memory.fd(), static_cast<uint64_t>(start - memory.base())};
    return device::SharedMemory{std::string(reinterpret_cast<const char*>(&handle), sizeof(handle)),
                                block->capacity(),
                                static_cast<uint64_t>(static_cast<const std::byte*>(data) - start)};
  }

  absl::StatusOr<std::unique_ptr<device::OpenedMemory>> open(c10::Device, const std::string& bytes,
                                                             uint64_t size) override {
    if (ipc_faults().no_open) return absl::UnavailableError("the driver refuses to open memory");
    MemoryHandle handle;
    if (bytes.size() != sizeof(handle)) return absl::InvalidArgumentError("malformed handle of memory");
    std::memcpy(&handle, bytes.data(), sizeof(handle));
    const std::string path = absl::StrCat("/proc/", handle.process, "/fd/", handle.file);
    char target[64] = "";
    if (::readlink(path.c_str(), target, sizeof(target) - 1) < 0)
      return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
    if (std::string(target).rfind("/memfd:lag (", 0) != 0)
      return absl::InvalidArgumentError("the handle is not that of memory");
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat info = {};
    if (!file.valid() || ::fstat(file.get(), &info) != 0)
      return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
    const auto limit = static_cast<uint64_t>(info.st_size);
    if (size == 0 || size > limit || handle.offset > limit - size)
      return absl::InvalidArgumentError("the handle is not that of an allocation of this size");
    // A mapping begins at a page.
    const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t before = handle.offset % page;
    const bool wrong = ipc_faults().wrong_memory;
    void* mapping = ::mmap(nullptr, size + before, PROT_READ | PROT_WRITE,
                           wrong ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, wrong ? -1 : file.get(),
                           wrong ? 0 : static_cast<off_t>(handle.offset - before));
    if (mapping == MAP_FAILED)
      return absl::UnavailableError(absl::StrCat("cannot map memory: ", std::strerror(errno)));
    return std::make_unique<OpenedMemory>(mapping, size + before, static_cast<std::byte*>(mapping) + before);
  }

  absl::StatusOr<std::unique_ptr<device::SharedEvent>> make_event(c10::Device device) override {
    if (ipc_faults().no_event) return absl::UnavailableError("the driver refuses to make a shared event");
    return wrap(lag::SharedEvent::make(accelerator().shared(), index_of(device)));
  }

  absl::StatusOr<std::unique_ptr<device::SharedEvent>> open_event(c10::Device device,
                                                                  const std::string& handle) override {
    if (ipc_faults().no_open) return absl::UnavailableError("the driver refuses to open an event");
    return wrap(lag::SharedEvent::open(accelerator().shared(), index_of(device), handle));
  }

  absl::Status copy(void* to, const void* from, std::size_t size, const c10::Stream& stream) override {
    return guarded([&] {
      ++copies;
      return stream_of(stream).launch([to, from, size] { std::memcpy(to, from, size); });
    });
  }
};

[[maybe_unused]] const bool transfer_registered = [] {
  static Transfer transfer;
  device::register_device_transfer(&transfer);
  return true;
}();

}  // namespace

IpcFaults& ipc_faults() {
  static auto* const faults = new IpcFaults;
  return *faults;
}

IpcCounts ipc_counts() {
  return {SharedEvent::made(), SharedEvent::opened(), opened_memories, memories_ever, copies};
}

}  // namespace gradwire::lag
