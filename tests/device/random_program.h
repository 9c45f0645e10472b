#pragma once

#include <cstdint>
#include <string>

namespace gradwire {

// A mistake that a program makes on purpose, at some of the places where it can.
enum class Mistake {
  kNone,
  // A stream uses a tensor that another stream has not written yet.
  kNoWait,
  // A tensor is freed while a stream other than its own still uses it.
  kNoRecordStream,
  // The event that says that a tensor is written is recorded before the kernel that writes it.
  kEarlyEvent,
};

// Runs a random program twice: on the CPU, and on the devices with several streams each, events between them,
// copies between devices and the host, writes in place, views, and frees. Returns what differs in words, or
// an empty string. The seed decides the program and how late its kernels run.
std::string run_random_program(uint64_t seed, Mistake mistake);

}  // namespace gradwire
