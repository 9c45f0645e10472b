#pragma once

#include "gradwire/tools/bench/run/bench_process.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/suites/case_name.h"

namespace gradwire::bench {

// Returns how the calls of a case follow one another. Every system uses this, so that all run the same loop.
inline Timing timing_of(const Task& task) {
  constexpr int64_t kLarge = 4 << 10;
  const CaseName name = parse_case(task.case_name);
  return {.seconds = task.seconds,
          .idle_us = name.idle_us,
          .compute_us = name.compute_us,
          .large = name.bytes >= kLarge};
}

}  // namespace gradwire::bench
