
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "gradwire/base/testing/test_needs.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

TEST(Terminal, BytesPassUnchangedAlsoAfterTheWriterHasClosed) {
  GRADWIRE_NEEDS("pseudo_terminals", test_needs::pseudo_terminals());
  absl::StatusOr<Pipe> terminal = make_terminal();
  ASSERT_TRUE(terminal.ok()) << terminal.status();
  EXPECT_TRUE(isatty(terminal->write_end.get()));
  // The bytes include all control characters and line ends of a terminal.
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  text += "a\nb\r\nc\td";
  ASSERT_TRUE(write_all(terminal->write_end.get(), text));
  terminal->write_end.reset();
  std::string got;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read_retrying(terminal->read_end.get(), buffer, sizeof(buffer))) > 0) got.append(buffer, n);
  EXPECT_EQ(n, -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(got, text);
}

TEST(Terminal, WriterMayNotRead) {
  GRADWIRE_NEEDS("pseudo_terminals", test_needs::pseudo_terminals());
  absl::StatusOr<Pipe> terminal = make_terminal();
  ASSERT_TRUE(terminal.ok()) << terminal.status();
  char byte;
  EXPECT_EQ(read(terminal->write_end.get(), &byte, 1), -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace gradwire::tools
