#pragma once

namespace gradwire {

// While an object exists, the creation of threads in this process fails with EAGAIN, as at a limit of the
// system, after the first `succeed` ones. One object at a time. Linked directly into the test, so that it
// comes before libc's pthread_create.
class FailingThreads {
 public:
  explicit FailingThreads(int succeed = 0);
  ~FailingThreads();
  FailingThreads(const FailingThreads&) = delete;
  FailingThreads& operator=(const FailingThreads&) = delete;

  // The number of creations that have failed.
  int failed() const;
};

}  // namespace gradwire
