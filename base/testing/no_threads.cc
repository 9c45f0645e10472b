#include <pthread.h>
#include <unistd.h>

#include <cstdlib>

// Replaces libc's function in tests that declare `threads = False`. Such tests do not run under
// ThreadSanitizer, so a thread that one of them starts would never be checked.
extern "C" int pthread_create(pthread_t* /*thread*/, const pthread_attr_t* /*attributes*/,
                              void* (* /*function*/)(void*), void* /*argument*/) {
  static constexpr char kMessage[] =
      "pthread_create: this test is declared with threads = False in its BUILD file; remove that attribute\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  std::abort();
}
