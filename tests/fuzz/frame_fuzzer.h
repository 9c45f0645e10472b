#pragma once

#include <cstddef>
#include <cstdint>

// Reads `data` as a TCP stream. Aborts the process if the parser's result depends on how the stream is cut
// into pieces, or if it writes bytes beyond the frame. Linked with -fsanitize=fuzzer it is libFuzzer's entry
// point.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);
