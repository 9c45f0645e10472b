// The second process of the tests with two processes. It prints "address " and its address, and echoes all
// messages until its standard input ends. Its argument: the methods that UCX may use.

#include <unistd.h>

#include <cstdio>
#include <string>

#include "gradwire/security/credentials.h"
#include "gradwire/transport/ucx/ucx_transport.h"

namespace gradwire::transport {
namespace {

class Echo : public ConnectionListener {
 public:
  void on_message(Connection& connection, Message message) override {
    (void)connection.send(std::move(message));
  }
  void on_closed(Connection&, absl::Status) override {}
};

int run(const std::string& methods) {
  UcxOptions options;
  options.methods = methods;
  options.credentials = security::insecure_credentials();
  const auto transport = make_ucx_transport(options);
  const auto address =
      transport->listen([](const std::shared_ptr<Connection>&) { return std::make_shared<Echo>(); });
  if (!address.ok()) {
    std::fprintf(stderr, "%s\n", address.status().ToString().c_str());
    return 1;
  }
  std::printf("address %s\n", address->c_str());
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  transport->shutdown();
  return 0;
}

}  // namespace
}  // namespace gradwire::transport

int main(int argc, char** argv) { return gradwire::transport::run(argc > 1 ? argv[1] : ""); }
