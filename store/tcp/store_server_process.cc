// A process that runs only a TcpStore's server, for tests that kill it. Prints its port and serves until its
// standard input ends. The optional argument is the port to use.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "gradwire/base/error.h"
#include "gradwire/store/tcp_store_server.h"

int main(int argc, char** argv) {
  try {
    auto server = gradwire::value_or_throw(gradwire::store::TcpStoreServer::start(
        {.host = "localhost", .port = argc > 1 ? std::atoi(argv[1]) : 0}));
    std::printf("%d\n", server->port());
    std::fflush(stdout);
    char byte;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
