#include "gradwire/transport/shm/memory/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/file_size_limit.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {
namespace {

// With these seals no process can change the size of the file or add seals. Otherwise a peer could shrink
// it, and an access to the missing part would kill this process with SIGBUS.
//
// The other seals of Linux are not set here:
// - F_SEAL_WRITE and F_SEAL_FUTURE_WRITE: both ends write to the memory. The consumer of a ring stores its
//   position there (ring.h), and the receiver of a block releases it there (arena.h). A reader therefore
//   never trusts a value that it reads a second time.
// - F_SEAL_EXEC: MFD_NOEXEC_SEAL sets it, where the kernel has it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The file cannot be executed, nor made executable. Since Linux 6.3; earlier headers do not define it. With
// vm.memfd_noexec=2 the kernel demands it.
constexpr unsigned kNoExecSeal = 0x0008U;

Descriptor new_memory_file() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Descriptor created = Descriptor::from([&] { return ::memfd_create("gradwire", kFlags | kNoExecSeal); });
  if (!created.valid() && errno == EINVAL)
    created = Descriptor::from([&] { return ::memfd_create("gradwire", kFlags); });
  return created;
}

absl::Status map_error(std::size_t bytes, int error) {
  return system_status(absl::StrCat("cannot map ", bytes, " bytes"), error, Resource::kMapping);
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

SharedMemory::~SharedMemory() {
  if (data_ != nullptr && mark_.here()) ::munmap(data_, size_);
}

void SharedMemory::keep_from_children() const { (void)::madvise(data_, size_, MADV_DONTFORK); }

absl::StatusOr<SharedMemory> SharedMemory::create(std::size_t bytes, bool huge, Descriptor& descriptor) {
  const std::string what = absl::StrCat("cannot allocate shared memory of ", bytes, " bytes");
  // The limit on the size of files applies to memory files too.
  if (bytes > file_size_limit()) return system_status(what, EFBIG);
  Descriptor created = new_memory_file();
  if (!created.valid()) return system_status(what, errno);
  {
    const NoFileSizeSignal no_signal;
    if (::ftruncate(created.get(), static_cast<off_t>(bytes)) != 0) return system_status(what, errno);
  }
  // A memory file has mode 0777. The mode matters for a process that reaches the file by a path, as
  // /proc/PID/fd.
  if (::fchmod(created.get(), 0600) != 0) return errno_status("cannot protect shared memory", errno);
  if (::fcntl(created.get(), F_ADD_SEALS, kSeals) != 0)
    return errno_status("cannot seal shared memory", errno);
  absl::StatusOr<SharedMemory> memory = map(created.get(), bytes, huge);
  if (memory.ok()) descriptor = std::move(created);
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::adopt(const Descriptor& descriptor, std::size_t bytes, bool huge) {
  // Only memory files have seals. Files of huge-page file systems have seals too, but an access kills the
  // process if no huge page is available.
  struct statfs file_system;
  struct stat file;
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstatfs(descriptor.get(), &file_system) != 0 ||
      static_cast<uint64_t>(file_system.f_type) != TMPFS_MAGIC || ::fstat(descriptor.get(), &file) != 0) {
    return absl::InvalidArgumentError("the received descriptor is not sealed shared memory");
  }
  // The seals were checked before: from then on the size cannot change.
  if (bytes == 0 || static_cast<uint64_t>(file.st_size) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong size of received shared memory: got ", file.st_size, " bytes, expected ", bytes));
  }
  return map(descriptor.get(), bytes, huge);
}

absl::StatusOr<SharedMemory> SharedMemory::map(int descriptor, std::size_t bytes, bool huge) {
  // Huge pages need aligned addresses: reserve more than needed and unmap the rest.
  const std::size_t slack = huge ? kHugePage : 0;
  void* const reserved =
      ::mmap(nullptr, bytes + slack, huge ? PROT_NONE : PROT_READ | PROT_WRITE,
             huge ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, huge ? -1 : descriptor, 0);
  if (reserved == MAP_FAILED) return map_error(bytes, errno);
  char* start = static_cast<char*>(reserved);
  if (huge) {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t mapped = (bytes + page - 1) / page * page;
    const std::size_t before = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    const std::size_t end = (bytes + slack + page - 1) / page * page;
    if (::mmap(start + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) ==
        MAP_FAILED) {
      absl::Status status = map_error(bytes, errno);
      ::munmap(start, bytes + slack);
      return status;
    }
    if (before > 0) ::munmap(start, before);
    if (end > before + mapped) ::munmap(start + before + mapped, end - before - mapped);
    start += before;
    // If the system does not allow huge pages here, small pages are used.
    ::madvise(start, bytes, MADV_HUGEPAGE);
  }
  return SharedMemory(start, bytes);
}

}  // namespace gradwire::transport
