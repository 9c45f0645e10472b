#include "gradwire/tools/bench/collectives/collective_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace gradwire::bench {

CollectivePage CollectivePage::make() {
  const int fd = memfd_create("bench_collective", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, COLLECTIVE_PAGE_BYTES) != 0) {
    throw std::runtime_error(std::string("cannot create the shared page: ") + std::strerror(errno));
  }
  return CollectivePage(fd, "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd));
}

CollectivePage CollectivePage::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error("cannot open the shared page " + path + ": " + std::strerror(errno));
  return CollectivePage(fd, path);
}

CollectivePage::CollectivePage(int fd, std::string path) : fd_(fd), path_(std::move(path)) {
  void* const page = mmap(nullptr, COLLECTIVE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    throw std::runtime_error("cannot map the shared page " + path_ + ": " + std::strerror(errno));
  }
  sync_.page = static_cast<uint64_t*>(page);
}

CollectivePage::~CollectivePage() {
  if (sync_.page != nullptr) munmap(sync_.page, COLLECTIVE_PAGE_BYTES);
  if (fd_ >= 0) close(fd_);
}

CollectivePage::CollectivePage(CollectivePage&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      sync_(std::exchange(other.sync_, collective_sync{})) {}

CollectivePage& CollectivePage::operator=(CollectivePage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(sync_, other.sync_);
  return *this;
}

}  // namespace gradwire::bench
