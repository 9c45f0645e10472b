#include "collectives/cpu/host_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/error.h"
#include "base/host.h"
#include "base/random_id.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr const char* kMemoryKey = "memory";

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

absl::Status unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<transport::SharedMemory> adopt(const std::string& published, std::size_t bytes) {
  const std::vector<std::string> fields = absl::StrSplit(published, ' ');
  int process = 0, fd = 0;
  std::string token;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &process) || !absl::SimpleAtoi(fields[1], &fd) ||
      fields[2].size() != sizeof(HostMemory::Header::token)) {
    return absl::InvalidArgumentError("what the store says of the shared memory is garbage");
  }
  // Opened anew: a descriptor of the file itself, of which the process that made it need know nothing.
  const std::string path = absl::StrCat("/proc/", process, "/fd/", fd);
  const transport::Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!descriptor.valid()) return unavailable(absl::StrCat("cannot open ", path));
  GRADWIRE_ASSIGN_OR_RETURN(transport::SharedMemory memory,
                            transport::SharedMemory::adopt(descriptor, bytes, false));
  const auto* header = reinterpret_cast<const HostMemory::Header*>(memory.data());
  if (std::memcmp(header->token, fields[2].data(), sizeof(header->token)) != 0) {
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
      watched_(options.size) {}

HostMemory::~HostMemory() {
  member(index_).left.store(1);
  ring();
}

void HostMemory::ring() {
  header().bell.fetch_add(1);
  ::syscall(SYS_futex, &header().bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::join(const Options& options) {
  // Until the others have opened it.
  transport::Descriptor descriptor;
  absl::StatusOr<std::unique_ptr<HostMemory>> mapped = map(options, descriptor);
  // All have it or none: the others must not wait for one who cannot.
  GRADWIRE_RETURN_IF_ERROR(options.store->try_set(absl::StrCat("joined/", options.index),
                                                  mapped.ok() ? "" : mapped.status().ToString()));
  if (mapped.ok()) GRADWIRE_RETURN_IF_ERROR((*mapped)->meet(options));
  return mapped;
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::map(const Options& options,
                                                            transport::Descriptor& descriptor) {
  const std::size_t bytes = total_bytes(options.size, options.slot_bytes);
  std::unique_ptr<HostMemory> joined;
  if (options.index == 0) {
    GRADWIRE_ASSIGN_OR_RETURN(transport::SharedMemory memory,
                              transport::SharedMemory::create(bytes, false, descriptor));
    const std::string token = absl::StrCat(absl::Hex(random_id(), absl::kZeroPad16));
    std::memcpy(reinterpret_cast<Header*>(memory.data())->token, token.data(), sizeof(Header::token));
    joined.reset(new HostMemory(options, std::move(memory)));
    GRADWIRE_RETURN_IF_ERROR(
        options.store->try_set(kMemoryKey, absl::StrCat(::getpid(), " ", descriptor.get(), " ", token)));
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(const std::string published,
                              options.store->try_get(kMemoryKey, options.timeout));
    GRADWIRE_ASSIGN_OR_RETURN(transport::SharedMemory memory, adopt(published, bytes));
    joined.reset(new HostMemory(options, std::move(memory)));
  }
  joined->member(options.index).core.store(-1);
  joined->member(options.index).process.store(::getpid());
  return joined;
}

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
    if (process == ::getpid()) continue;
    watched_[i] = transport::Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    if (!watched_[i].valid()) return unavailable(absl::StrCat("cannot watch process ", process));
  }
  return absl::OkStatus();
}

bool HostMemory::gone(int index) const {
  if (member(index).left.load() != 0) return true;
  if (!watched_[index].valid()) return false;
  pollfd watched{.fd = watched_[index].get(), .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, 0) > 0;
}

}  // namespace gradwire::collectives::cpu
