#include "gradwire/tools/launch/io/sink.h"

#include <gtest/gtest.h>

#include <string>

#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

std::string read_some(const Pipe& pipe) {
  std::string text(100, 0);
  const ssize_t size = read_retrying(pipe.read_end.get(), text.data(), text.size());
  text.resize(size < 0 ? 0 : static_cast<size_t>(size));
  return text;
}

TEST(OutputSink, WritesWhenTheDescriptorHasRoom) {
  auto loop = FdLoop::create();
  ASSERT_TRUE(loop.ok()) << loop.status();
  const auto pipe = make_pipe();
  ASSERT_TRUE(pipe.ok()) << pipe.status();
  OutputSink sink(*loop, pipe->write_end.get());
  sink.append("one\n");
  EXPECT_FALSE(sink.empty());
  loop->run_once(absl::Seconds(60));
  EXPECT_TRUE(sink.empty());
  EXPECT_EQ(read_some(*pipe), "one\n");
}

// The launcher waits at its end until its sinks are empty.
TEST(OutputSink, WritesAtOnceIfTheLoopCannotWaitForTheDescriptor) {
  auto loop = FdLoop::create();
  ASSERT_TRUE(loop.ok()) << loop.status();
  const auto pipe = make_pipe();
  ASSERT_TRUE(pipe.ok()) << pipe.status();
  OutputSink sink(*loop, pipe->write_end.get());
  // epoll refuses a descriptor that was added before.
  ASSERT_TRUE(loop->add(pipe->write_end.get(), 0, [](uint32_t) {}).ok());
  sink.append("one\n");
  EXPECT_TRUE(sink.empty());
  sink.append("two\n");
  EXPECT_TRUE(sink.empty());
  EXPECT_EQ(read_some(*pipe), "one\ntwo\n");
  // From here on the loop can wait again.
  loop->remove(pipe->write_end.get());
  sink.append("three\n");
  EXPECT_FALSE(sink.empty());
  loop->run_once(absl::Seconds(60));
  EXPECT_TRUE(sink.empty());
  EXPECT_EQ(read_some(*pipe), "three\n");
}

}  // namespace
}  // namespace gradwire::tools
