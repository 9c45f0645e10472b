#include "gradwire/collectives/cpu/memory/host_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/random_id.h"
#include "gradwire/base/threads/futex.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr const char* kMemoryKey = "memory";
// Prefix of an entry that reports why there is no memory.
constexpr const char* kFailed = "failed: ";

std::size_t to_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

static_assert(sizeof(HostMemory::Header) <= kPage);
static_assert(sizeof(HostMemory::Line) == 128);

std::size_t members_offset() { return kPage; }
std::size_t lines_offset(int size) { return members_offset() + to_pages(sizeof(HostMemory::Member) * size); }
std::size_t slots_offset(int size) {
  return lines_offset(size) + to_pages(2 * sizeof(HostMemory::Line) * size);
}
std::size_t total_bytes(int size, std::size_t slot_bytes) {
  return slots_offset(size) + 2 * static_cast<std::size_t>(size) * slot_bytes;
}

// The entry by which member 0 publishes its memory in the store. If it cannot create the memory, the entry is
// kFailed and the reason.
struct Published {
  int process = 0;
  int fd = 0;
  std::string token;

  std::string encode() const { return absl::StrCat(process, " ", fd, " ", token); }
  static absl::StatusOr<Published> parse(absl::string_view text) {
    const std::vector<std::string> fields = absl::StrSplit(text, ' ');
    Published published;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &published.process) || published.process <= 0 ||
        !absl::SimpleAtoi(fields[1], &published.fd) || published.fd < 0 ||
        fields[2].size() != sizeof(HostMemory::Header::token)) {
      return absl::InvalidArgumentError(absl::StrCat("malformed entry of shared memory in the store: got \"",
                                                     absl::CHexEscape(text),
                                                     "\", expected \"<process> <descriptor> <token>\""));
    }
    published.token = fields[2];
    return published;
  }
};

// Opens the shared memory behind a descriptor of another process. The problem: the entry may name any file,
// and opening some files has effects: a device may act, a pipe may block. So:
// 1. O_PATH finds out what the file is without opening it. (O_NOFOLLOW is not usable: the entries of
//    /proc/PID/fd are links.)
// 2. Only a file in memory that belongs to this user is opened, through the descriptor of step 1, so that it
//    is the same file.
absl::StatusOr<Descriptor> open_memory(const std::string& path) {
  const Descriptor found = Descriptor::from([&] { return ::open(path.c_str(), O_PATH | O_CLOEXEC); });
  if (!found.valid()) return system_status(absl::StrCat("cannot open ", path), errno);
  struct stat file;
  struct statfs file_system;
  if (::fstat(found.get(), &file) != 0 || ::fstatfs(found.get(), &file_system) != 0)
    return errno_status(absl::StrCat("cannot get the status of ", path), errno);
  if (!S_ISREG(file.st_mode) || static_cast<uint64_t>(file_system.f_type) != TMPFS_MAGIC ||
      file.st_uid != ::geteuid()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not shared memory: got a file of mode ", absl::Hex(file.st_mode), " of user ",
                     file.st_uid, ", expected a regular file in memory of user ", ::geteuid()));
  }
  const std::string own_path = absl::StrCat("/proc/self/fd/", found.get());
  Descriptor opened =
      Descriptor::from([&] { return ::open(own_path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK); });
  if (!opened.valid()) return system_status(absl::StrCat("cannot open ", path), errno);
  return opened;
}

bool has_ended(const Descriptor& process) {
  pollfd watched{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, 0) > 0;
}

// A pidfd refers to the process, not to its number. It stays readable after the process has ended, even if
// the number is used again.
absl::StatusOr<Descriptor> watch(int process) {
  Descriptor watched =
      Descriptor::from([&] { return static_cast<int>(::syscall(SYS_pidfd_open, process, 0)); });
  if (!watched.valid()) return system_status(absl::StrCat("cannot watch process ", process), errno);
  return watched;
}

absl::StatusOr<transport::SharedMemory> adopt(const Published& published, std::size_t bytes) {
  // The process is watched before the path is used: while this process has not ended, its number cannot name
  // another process.
  GRADWIRE_ASSIGN_OR_RETURN(const Descriptor process, watch(published.process));
  // Opens a new descriptor of the file, without help of the process that created it.
  const std::string path = absl::StrCat("/proc/", published.process, "/fd/", published.fd);
  GRADWIRE_ASSIGN_OR_RETURN(const Descriptor descriptor, open_memory(path));
  // If the process had ended before the path was opened, its number may have named another process then.
  if (has_ended(process))
    return absl::UnavailableError(
        absl::StrCat("process ", published.process, ", which made the shared memory, has ended"));
  GRADWIRE_ASSIGN_OR_RETURN(transport::SharedMemory memory,
                            transport::SharedMemory::adopt(descriptor, bytes, false));
  const auto* header = reinterpret_cast<const HostMemory::Header*>(memory.data());
  // A store that is used twice may hold the entry of an earlier group, whose process and descriptor numbers
  // may be in use again.
  if (std::memcmp(header->token, published.token.data(), sizeof(header->token)) != 0) {
    return absl::UnavailableError(absl::StrCat(path, " is the memory of another group"));
  }
  return memory;
}

}  // namespace

std::string host_key() {
  struct stat processes {};
  if (network_id().empty() || ::stat("/proc/self/ns/pid", &processes) != 0) return "";
  return absl::StrCat(network_id(), "-", processes.st_ino, "-", ::geteuid());
}

HostMemory::HostMemory(const Options& options, transport::SharedMemory memory)
    : index_(options.index),
      size_(options.size),
      slot_bytes_(options.slot_bytes),
      memory_(std::move(memory)),
      members_(reinterpret_cast<Member*>(memory_.data() + members_offset())),
      lines_(reinterpret_cast<Line*>(memory_.data() + lines_offset(size_))),
      slots_(memory_.data() + slots_offset(size_)),
      watched_(options.size) {
  memory_.keep_from_children();
}

HostMemory::~HostMemory() {
  if (!mark_.here()) return;
  member(index_).left.store(1);
  signal();
}

void HostMemory::signal() {
  header().signals.fetch_add(1);
  futex_wake_all(header().signals);
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::join(const Options& options) {
  // Keeps the memory open until the others have opened it.
  Descriptor descriptor;
  absl::StatusOr<std::unique_ptr<HostMemory>> mapped = map(options, descriptor);
  // Either all members have the memory or none: report a failure, so that the others do not wait for this
  // member.
  GRADWIRE_RETURN_IF_ERROR(options.store->try_set(absl::StrCat("joined/", options.index),
                                                  mapped.ok() ? "" : mapped.status().ToString()));
  // meet() returns when all members have opened the memory. Only then `descriptor` is closed, through which
  // they open it.
  if (mapped.ok()) GRADWIRE_RETURN_IF_ERROR((*mapped)->meet(options));
  return mapped;
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::map(const Options& options, Descriptor& descriptor) {
  absl::StatusOr<std::unique_ptr<HostMemory>> mapped =
      options.index == 0 ? make(options, descriptor) : reach(options);
  if (!mapped.ok()) return mapped;
  // Stored before join() sets the entry "joined" in the store. So the others see both values after they have
  // read that entry.
  (*mapped)->member(options.index).core.store(-1);
  (*mapped)->member(options.index).process.store(::getpid());
  return mapped;
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::make(const Options& options, Descriptor& descriptor) {
  absl::StatusOr<transport::SharedMemory> memory =
      transport::SharedMemory::create(total_bytes(options.size, options.slot_bytes), false, descriptor);
  if (!memory.ok()) {
    // The others wait for the entry, so a failure is published there, too.
    GRADWIRE_RETURN_IF_ERROR(
        options.store->try_set(kMemoryKey, absl::StrCat(kFailed, memory.status().ToString())));
    return memory.status();
  }
  const Published published{::getpid(), descriptor.get(),
                            absl::StrCat(absl::Hex(random_id(), absl::kZeroPad16))};
  std::memcpy(reinterpret_cast<Header*>(memory->data())->token, published.token.data(),
              sizeof(Header::token));
  std::unique_ptr<HostMemory> made(new HostMemory(options, *std::move(memory)));
  GRADWIRE_RETURN_IF_ERROR(options.store->try_set(kMemoryKey, published.encode()));
  return made;
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::reach(const Options& options) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string entry, options.store->try_get(kMemoryKey, options.timeout));
  absl::string_view failure = entry;
  if (absl::ConsumePrefix(&failure, kFailed))
    return absl::UnavailableError(absl::StrCat("member 0 cannot share memory: ", failure));
  GRADWIRE_ASSIGN_OR_RETURN(const Published published, Published::parse(entry));
  GRADWIRE_ASSIGN_OR_RETURN(transport::SharedMemory memory,
                            adopt(published, total_bytes(options.size, options.slot_bytes)));
  return std::unique_ptr<HostMemory>(new HostMemory(options, std::move(memory)));
}

// 1. Wait until every member has reported.
// 2. If one has no memory, fail too: it would be missing in every phase.
// 3. Watch the processes of the others, so that a phase does not wait for one that has ended.
absl::Status HostMemory::meet(const Options& options) {
  std::vector<std::string> keys;
  for (int i = 0; i < size_; ++i) keys.push_back(absl::StrCat("joined/", i));
  GRADWIRE_RETURN_IF_ERROR(options.store->try_wait(keys, options.timeout));
  for (int i = 0; i < size_; ++i) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::string failure, options.store->try_get(keys[i], options.timeout));
    if (!failure.empty()) {
      return absl::UnavailableError(absl::StrCat("member ", i, " cannot share memory: ", failure));
    }
    const int process = member(i).process.load();
    // Members of this process, as threads in tests, end together with this member.
    if (process == ::getpid()) continue;
    GRADWIRE_ASSIGN_OR_RETURN(watched_[i], watch(process));
  }
  return absl::OkStatus();
}

bool HostMemory::gone(int index) const {
  if (member(index).left.load() != 0) return true;
  if (!watched_[index].valid()) return false;
  return has_ended(watched_[index]);
}

}  // namespace gradwire::collectives::cpu
