#include "gradwire/base/io/epoll.h"

#include <algorithm>
#include <cerrno>

#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire {

absl::StatusOr<Epoll> Epoll::create() {
  Descriptor epoll = Descriptor::from([&] { return ::epoll_create1(EPOLL_CLOEXEC); });
  if (epoll.valid()) return Epoll(std::move(epoll));
  return system_status("cannot create an epoll instance", errno);
}

absl::Status Epoll::add(int fd, uint32_t events, uint64_t id) const {
  epoll_event event = {.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  if (errno == EPERM) return absl::PermissionDeniedError("cannot wait for a plain file");
  return system_status("cannot add a descriptor to epoll", errno, Resource::kWatch);
}

void Epoll::change(int fd, uint32_t events, uint64_t id) const {
  epoll_event event = {.events = events, .data = {.u64 = id}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Epoll::remove(int fd) const { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

absl::Span<const epoll_event> Epoll::wait(absl::Span<epoll_event> room, int milliseconds) const {
  const int count = ::epoll_wait(epoll_.get(), room.data(), static_cast<int>(room.size()), milliseconds);
  return room.first(static_cast<std::size_t>(std::max(count, 0)));
}

absl::Span<const epoll_event> Epoll::wait_for(absl::Span<epoll_event> room, absl::Duration time) const {
  if (time == absl::InfiniteDuration()) return wait(room, -1);
  time = std::clamp(time, absl::ZeroDuration(), absl::Hours(1));
  const timespec at_most = absl::ToTimespec(time);
  const int count =
      ::epoll_pwait2(epoll_.get(), room.data(), static_cast<int>(room.size()), &at_most, nullptr);
  if (count < 0 && errno == ENOSYS)
    return wait(room, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(time, absl::Milliseconds(1)))));
  return room.first(static_cast<std::size_t>(std::max(count, 0)));
}

}  // namespace gradwire
