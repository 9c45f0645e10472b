#pragma once

#include <cstddef>
#include <cstdint>

// Plays the other end of a connection through shared memory. `data` determines what that end writes into both
// rings, into the marks of blocks and to the socket, and when the transport polls, sends and releases
// received messages. Aborts the process if a message over the limits is delivered, or if the connection does
// not end. Linked with -fsanitize=fuzzer it is libFuzzer's entry point.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

// Does the same while another thread writes at arbitrary times; `seed` determines what it writes.
void run_shm_storm(unsigned seed);
