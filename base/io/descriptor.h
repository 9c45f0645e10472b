#pragma once

#include <unistd.h>

#include <utility>

#include "gradwire/base/fork.h"

namespace gradwire {

// Owns a file descriptor and closes it. A forked child closes its copy at once, and there the object is
// empty. Not thread-safe.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) { own_descriptor(fd); }
  // Owns what `make` returns, which calls the system without blocking. A child that another thread forks
  // meanwhile gets no copy.
  template <class Make>
  static Descriptor from(Make&& make) {
    const ForkDelay delay;
    return Descriptor(make());
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)), mark_(other.mark_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      mark_ = other.mark_;
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  // Returns -1 if the object owns no descriptor.
  int get() const { return mark_.here() ? fd_ : -1; }
  bool valid() const { return get() >= 0; }
  void reset() {
    const int fd = get();
    fd_ = -1;
    if (fd < 0) return;
    disown_descriptor(fd);
    ::close(fd);
  }

 private:
  int fd_ = -1;
  // Where `fd_` was opened.
  ProcessMark mark_;
};

}  // namespace gradwire
