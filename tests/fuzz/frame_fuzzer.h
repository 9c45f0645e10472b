#pragma once

#include <cstddef>
#include <cstdint>

// Reads `data` as a TCP stream. Stops the process when what the parser makes of it depends on the pieces it
// came in, or a place for bytes lies beyond the frame. Linked with -fsanitize=fuzzer it is libFuzzer's entry
// point.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);
