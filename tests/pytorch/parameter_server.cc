// A member in C++ of a job whose other member is trainer.py: they meet at the store that the launcher serves.

#include <cstdlib>
#include <iostream>

#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/store/tcp_store.h"

namespace {

void meet() {
  gradwire::store::TcpStore store(std::getenv("MASTER_ADDR"), std::atoi(std::getenv("MASTER_PORT")),
                                  {.timeout = absl::Seconds(60)});
  store.set("server/numbers", "3 4 5");
  store.set("server/name", "C++");
  std::cout << "server: the sum is " << store.get("trainer/sum") << std::endl;
}

}  // namespace

int main() {
  try {
    meet();
  } catch (const gradwire::Error& error) {
    std::cerr << "server: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
