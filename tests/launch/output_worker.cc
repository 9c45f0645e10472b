// Prints lines as C programs do, without flushing, and then waits for its end.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main() {
  const char* rank = std::getenv("RANK");
  for (int i = 1; i <= 100; ++i) std::printf("rank %s line %d\n", rank, i);
  const std::string printed = std::string(rank) + " " + std::to_string(getpid()) + "\n";
  // The test's pipe (tests/launch/launch_process.h).
  if (write(9, printed.data(), printed.size()) < 0) return 1;
  while (true) pause();
}
