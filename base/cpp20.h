#pragma once

// Refuses a standard older than C++20 in one line. A header whose own includes need C++20 includes this one
// first: otherwise the compiler would show their errors, hundreds of them, before this one.
#if __cplusplus < 202002L
#error "Gradwire needs C++20: compile with -std=c++20 (in Bazel's .bazelrc: build --cxxopt=-std=c++20)"
// The compiler stops at a file that does not exist, so it shows only the error above.
#include "Gradwire needs C++20"
#endif
