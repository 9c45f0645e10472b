// The second process of the tests with two processes. It prints its address and echoes all messages until its
// standard input ends.
//
// A message with the header "stream N" is answered with the message "begin" and a message with one buffer of
// N bytes; "sent" is printed when send() has returned.

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::transport {
namespace {

class Echo : public ConnectionListener {
 public:
  void on_message(Connection& connection, Message message) override {
    absl::string_view header = message.header;
    std::size_t size = 0;
    if (!absl::ConsumePrefix(&header, "stream ") || !absl::SimpleAtoi(header, &size)) {
      (void)connection.send(std::move(message));
      return;
    }
    Message begin;
    begin.header = "begin";
    (void)connection.send(std::move(begin));
    Message large;
    large.buffers = {make_test_buffer(size, 3)};
    (void)connection.send(std::move(large));
    std::puts("sent");
    std::fflush(stdout);
  }
  void on_closed(Connection&, absl::Status) override {}
};

int run(int argc, char** argv) {
  ShmOptions options;
  if (argc > 1 && std::string(argv[1]) == "sleep")
    options.wait = {absl::ZeroDuration(), absl::ZeroDuration()};
  if (argc > 2) options.max_arena_bytes = std::stoul(argv[2]);
  auto transport = make_shm_transport(options);
  auto address =
      transport->listen([](const std::shared_ptr<Connection>&) { return std::make_shared<Echo>(); });
  if (!address.ok()) {
    std::fprintf(stderr, "%s\n", address.status().ToString().c_str());
    return 1;
  }
  std::puts(address->c_str());
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  transport->shutdown();
  return 0;
}

}  // namespace
}  // namespace gradwire::transport

int main(int argc, char** argv) { return gradwire::transport::run(argc, argv); }
