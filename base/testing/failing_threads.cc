#include "gradwire/base/testing/failing_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

namespace gradwire {
namespace {

constexpr int kUnlimited = std::numeric_limits<int>::max();

std::atomic<int> left{kUnlimited};
std::atomic<int> failures{0};

bool may_start() {
  int now = left.load();
  while (now != kUnlimited) {
    if (now == 0) {
      failures.fetch_add(1);
      return false;
    }
    if (left.compare_exchange_weak(now, now - 1)) return true;
  }
  return true;
}

}  // namespace

FailingThreads::FailingThreads(int succeed) {
  failures.store(0);
  left.store(succeed);
}
FailingThreads::~FailingThreads() { left.store(kUnlimited); }
int FailingThreads::failed() const { return failures.load(); }

}  // namespace gradwire

using PthreadCreate = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

// A sanitizer that is linked into the program has its own function under this name, which calls libc's.
extern "C" __attribute__((weak)) PthreadCreate __interceptor_pthread_create;

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                              void* argument) {
  if (!gradwire::may_start()) return EAGAIN;
  if (&__interceptor_pthread_create != nullptr)
    return __interceptor_pthread_create(thread, attributes, function, argument);
  static PthreadCreate* const of_libc = reinterpret_cast<PthreadCreate*>(dlsym(RTLD_NEXT, "pthread_create"));
  return of_libc(thread, attributes, function, argument);
}
