#pragma once

#include <cstddef>
#include <cstdint>

// Plays the other end of a connection through shared memory: `data` says what it writes into both rings, the
// marks of blocks and the socket, and when the transport looks, sends and lets go of what it has received.
// Stops the process when a message over the limits comes through, or the connection does not end. Linked with
// -fsanitize=fuzzer it is libFuzzer's entry point.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

// The same, while another thread writes at arbitrary times what follows from `seed`.
void run_shm_storm(unsigned seed);
