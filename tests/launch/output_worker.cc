// Prints lines without flushing, as C programs do, and then waits until it is ended.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main() {
  const char* rank = std::getenv("RANK");
  for (int i = 1; i <= 100; ++i) std::printf("rank %s line %d\n", rank, i);
  const std::string printed = std::string(rank) + " " + std::to_string(getpid()) + "\n";
  // Descriptor 9 is the test's pipe (tests/launch/launch_process.h).
  if (write(9, printed.data(), printed.size()) < 0) return 1;
  while (true) pause();
}
