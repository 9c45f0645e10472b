#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/constructor.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/stream.h"

// The functions and classes that the snippets of compile_errors_test.py use.
using namespace gradwire::rpc;  // NOLINT

inline int64_t twice(int64_t n) { return 2 * n; }
GRADWIRE_RPC(twice)
inline double sum(const std::string& name, const std::vector<double>& values) { return values.size(); }
GRADWIRE_RPC(sum)

struct Counter {
  Counter(int64_t start, std::string name);
  void add(int64_t n, const std::vector<double>& more);
};
GRADWIRE_RPC_CONSTRUCTOR(Counter, int64_t, std::string)

inline Stream<int64_t> numbers(int64_t n) {
  for (int64_t i = 0; i < n; ++i) co_yield i;
}
GRADWIRE_RPC(numbers)

struct NoCodec {
  int x = 0;
};
int64_t overloaded(int64_t n);
double overloaded(double x);
struct Overloaded {
  void method();
  void method(int64_t n);
};
