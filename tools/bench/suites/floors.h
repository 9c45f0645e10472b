#pragma once

#include <memory>

#include "gradwire/tools/bench/run/bench_process.h"

// Floors: lower bounds that the machine sets. A floor does the minimum work that any framework must do in a
// case. It supports the same cases as the frameworks, where a floor exists.
namespace gradwire::bench {

// Two processes exchange a message through a shared page. They wait on a futex; or they spin.
std::unique_ptr<BenchProcess> make_floor_futex();
std::unique_ptr<BenchProcess> make_floor_spin();
// The callee sleeps, and a call wakes it: on the caller's own core or on another one, whichever is faster.
// Computes the figures wake_same_core_us and wake_other_core_us, the medians of both.
std::unique_ptr<BenchProcess> make_floor_wake();
// Tensors travel through shared memory that is warm in two processes: one copy for each direction, and a
// hand-over. Both processes spin, or take turns on one core, whichever is faster. The callee does the work of
// the case on the tensors.
std::unique_ptr<BenchProcess> make_floor_handoff();
// A round trip of eight bytes over TCP with blocking reads; or with non-blocking reads in a loop. The former
// also sends a tensor to the other process and back, between warm buffers.
std::unique_ptr<BenchProcess> make_floor_tcp();
std::unique_ptr<BenchProcess> make_floor_tcp_spin();
// Copies between warm buffers: one copy for each direction in which the bytes of a case are sent.
std::unique_ptr<BenchProcess> make_floor_memcpy();

}  // namespace gradwire::bench
