// A process that hosts the store of a group until it is killed.
//   store_process PORT

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "gradwire/base/error.h"
#include "gradwire/store/tcp_store.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: store_process PORT\n";
    return 2;
  }
  try {
    gradwire::store::TcpStore store("127.0.0.1", std::atoi(argv[1]), {.is_master = true});
    while (true) ::pause();
  } catch (const gradwire::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
