#include "gradwire/tests/device/core/shared_event.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"

namespace gradwire::lag {
namespace {

constexpr std::size_t kSlots = 65'536;
// The records of an event that may be under way at the same time.
constexpr std::size_t kRecords = 8;
constexpr absl::Duration kPause = absl::Microseconds(20);
constexpr absl::Duration kMaxWait = absl::Seconds(60);

std::atomic<int64_t> made_count{0};
std::atomic<int64_t> opened_count{0};
std::atomic<bool> exiting{false};

struct Handle {
  int32_t process;
  int32_t file;
  uint32_t slot;
  uint32_t serial;
};

// Whether the process has ended. A process that is not waited for by its parent has ended, too.
class Process {
 public:
  explicit Process(pid_t id) : own_(id == ::getpid()) {
    if (!own_) descriptor_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, id, 0)));
  }
  bool ended() const {
    if (own_) return false;
    if (!descriptor_.valid()) return true;
    pollfd readable{descriptor_.get(), POLLIN, 0};
    return ::poll(&readable, 1, 0) > 0;
  }

 private:
  const bool own_;
  Descriptor descriptor_;
};

}  // namespace

struct SharedEvent::Slot {
  // Changes when the slot gets another event. Odd while it has one.
  std::atomic<uint32_t> serial{0};
  // The process of the last record.
  std::atomic<int32_t> recorder{0};
  std::atomic<uint64_t> recorded{0};
  // done[n % kRecords] is n when the record n is passed.
  std::atomic<uint64_t> done[kRecords];

  bool passed(uint64_t record) const { return done[record % kRecords].load() >= record; }
};

// A mapping of the events of one process.
struct SharedEvent::File {
  Descriptor descriptor;
  Slot* slots = nullptr;

  Mutex mutex;
  std::size_t used ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::size_t> free ABSL_GUARDED_BY(mutex);

  ~File() {
    if (slots != nullptr) ::munmap(slots, kSlots * sizeof(Slot));
  }
  absl::Status map() {
    void* memory = ::mmap(nullptr, kSlots * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          descriptor.get(), 0);
    if (memory == MAP_FAILED)
      return absl::UnavailableError(absl::StrCat("cannot map events: ", std::strerror(errno)));
    slots = static_cast<Slot*>(memory);
    return absl::OkStatus();
  }
};

const std::shared_ptr<SharedEvent::File>& SharedEvent::own_file() {
  // Never destroyed, because static objects may own events.
  static auto* const file = new std::shared_ptr<File>([] {
    auto made = std::make_shared<File>();
    made->descriptor = Descriptor(::memfd_create("lag-events", MFD_CLOEXEC));
    if (!made->descriptor.valid() ||
        ::ftruncate(made->descriptor.get(), static_cast<off_t>(kSlots * sizeof(Slot))) != 0 ||
        !made->map().ok()) {
      throw std::runtime_error(absl::StrCat("cannot make memory for events: ", std::strerror(errno)));
    }
    // Streams that wait must end before the accelerator stops them.
    std::atexit([] { exiting = true; });
    return made;
  }());
  return *file;
}

SharedEvent::SharedEvent(Shared& shared, int device, std::shared_ptr<File> file, Slot* slot,
                         std::string handle, bool own)
    : shared_(shared),
      device_(device),
      file_(std::move(file)),
      slot_(slot),
      handle_(std::move(handle)),
      own_(own) {
  ++(own ? made_count : opened_count);
}

SharedEvent::~SharedEvent() {
  --(own_ ? made_count : opened_count);
  if (!own_) return;
  slot_->serial.fetch_add(1);
  MutexLock lock(file_->mutex);
  // Used again late, so that streams which still use the event do not meet the next one.
  file_->free.insert(file_->free.begin(), static_cast<std::size_t>(slot_ - file_->slots));
}

absl::StatusOr<std::unique_ptr<SharedEvent>> SharedEvent::make(Shared& shared, int device) {
  if (absl::Status status = shared.status(device); !status.ok()) return status;
  const std::shared_ptr<File>& file = own_file();
  std::size_t index = 0;
  {
    MutexLock lock(file->mutex);
    if (file->used < kSlots) {
      index = file->used++;
    } else if (!file->free.empty()) {
      index = file->free.back();
      file->free.pop_back();
    } else {
      return absl::UnavailableError(absl::StrCat("too many shared events: ", kSlots));
    }
  }
  Slot& slot = file->slots[index];
  const Handle handle{::getpid(), file->descriptor.get(), static_cast<uint32_t>(index),
                      slot.serial.fetch_add(1) + 1};
  std::string bytes(reinterpret_cast<const char*>(&handle), sizeof(handle));
  return std::unique_ptr<SharedEvent>(new SharedEvent(shared, device, file, &slot, std::move(bytes), true));
}

absl::StatusOr<std::unique_ptr<SharedEvent>> SharedEvent::open(Shared& shared, int device,
                                                               const std::string& bytes) {
  Handle handle;
  if (bytes.size() != sizeof(handle)) return absl::InvalidArgumentError("malformed handle of an event");
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  if (handle.slot >= kSlots) return absl::InvalidArgumentError("malformed handle of an event");
  (void)own_file();
  auto file = std::make_shared<File>();
  const std::string path = absl::StrCat("/proc/", handle.process, "/fd/", handle.file);
  char target[64] = "";
  if (::readlink(path.c_str(), target, sizeof(target) - 1) < 0)
    return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  if (std::string(target).rfind("/memfd:lag-events", 0) != 0)
    return absl::InvalidArgumentError("the handle is not that of an event");
  file->descriptor = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file->descriptor.valid())
    return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  GRADWIRE_RETURN_IF_ERROR(file->map());
  Slot* const slot = file->slots + handle.slot;
  if (handle.serial % 2 == 0 || slot->serial.load() != handle.serial)
    return absl::InvalidArgumentError("the event of the handle does not exist any more");
  return std::unique_ptr<SharedEvent>(new SharedEvent(shared, device, std::move(file), slot, bytes, false));
}

absl::Status SharedEvent::record(Stream& stream) {
  if (stream.device() != device_) {
    return absl::InvalidArgumentError(
        absl::StrCat("an event of device lag:", device_, " cannot be recorded on ", stream.name()));
  }
  if (absl::Status status = shared_.status(device_); !status.ok()) return status;
  slot_->recorder = ::getpid();
  const uint64_t record = slot_->recorded.load() + 1;
  // The destructor passes the record, so that a stream which is stopped or lost holds up no other process.
  struct Passes {
    std::shared_ptr<File> file;
    Slot* slot;
    uint64_t record;
    ~Passes() { slot->done[record % kRecords] = record; }
  };
  slot_->recorded = record;
  auto passes = std::make_shared<Passes>();
  passes->file = file_;
  passes->slot = slot_;
  passes->record = record;
  stream.launch_at_once([passes = std::move(passes)] {});
  return absl::OkStatus();
}

absl::Status SharedEvent::block(Stream& stream) const {
  if (absl::Status status = shared_.status(stream.device()); !status.ok()) return status;
  const uint64_t record = slot_->recorded.load();
  if (slot_->passed(record)) return absl::OkStatus();
  auto recorder = std::make_shared<Process>(slot_->recorder.load());
  stream.launch_at_once(
      [file = file_, slot = slot_, record, recorder, &shared = shared_, device = stream.device()] {
        const absl::Time deadline = absl::Now() + kMaxWait;
        for (int turn = 0; !slot->passed(record); ++turn) {
          if (exiting || (turn % 16 == 15 && (recorder->ended() || !shared.status(device).ok()))) return;
          if (absl::Now() > deadline) throw std::runtime_error("an event of another process was not passed");
          absl::SleepFor(kPause);
        }
      });
  return absl::OkStatus();
}

int64_t SharedEvent::made() { return made_count; }
int64_t SharedEvent::opened() { return opened_count; }

}  // namespace gradwire::lag
