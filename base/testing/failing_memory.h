#pragma once

#include <limits>

namespace gradwire {

// While an object exists, operator new throws std::bad_alloc in the thread that has made it: after `succeed`
// allocations, for the next `fail` of them. One object at a time in a thread. The library replaces operator
// new in the test that links it.
class FailingMemory {
 public:
  static constexpr int kAll = std::numeric_limits<int>::max();

  explicit FailingMemory(int succeed = 0, int fail = kAll);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  // The number of allocations that have failed.
  int failed() const;
};

// While an object exists, one allocation of the process fails: that after `succeed` others, in whichever
// thread it is. One object at a time.
class FailingMemoryOfProcess {
 public:
  explicit FailingMemoryOfProcess(int succeed);
  ~FailingMemoryOfProcess();
  FailingMemoryOfProcess(const FailingMemoryOfProcess&) = delete;
  FailingMemoryOfProcess& operator=(const FailingMemoryOfProcess&) = delete;

  // Whether the allocation has failed.
  bool failed() const;
};

}  // namespace gradwire
