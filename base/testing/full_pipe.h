#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "gradwire/base/io/descriptor.h"

namespace gradwire {

// For tests: a pipe of which nobody has read, so that a write to in() waits.
class FullPipe {
 public:
  FullPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    out_ = Descriptor(ends[0]);
    in_ = Descriptor(ends[1]);
    EXPECT_EQ(::fcntl(in(), F_SETFL, O_NONBLOCK), 0);
    const std::string filler(4096, 'x');
    while (::write(in(), filler.data(), filler.size()) > 0) filled_ += filler.size();
    EXPECT_EQ(::fcntl(in(), F_SETFL, 0), 0);
  }
  int in() const { return in_.get(); }
  // Reads what the pipe was filled with.
  void drain() {
    for (std::size_t got = 0; got < filled_;) {
      const std::string part = read_some(filled_ - got);
      ASSERT_FALSE(part.empty());
      got += part.size();
    }
  }
  void close() { in_.reset(); }
  // Waits for text, and returns at most so many bytes of it; nothing at the end of the pipe.
  std::string read_some(std::size_t at_most = 4096) {
    std::string text(at_most, 0);
    const ssize_t got = ::read(out_.get(), text.data(), text.size());
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }
  // Reads until all copies of in() are closed.
  std::string rest_until_closed() {
    std::string text;
    for (std::string part = read_some(); !part.empty(); part = read_some()) text += part;
    return text;
  }
  std::string rest() {
    close();
    return rest_until_closed();
  }

 private:
  Descriptor out_, in_;
  std::size_t filled_ = 0;
};

}  // namespace gradwire
