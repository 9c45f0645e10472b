#pragma once

#include <cstddef>

namespace gradwire::transport {

// As memcpy(), with the fastest method of this machine for large copies. Between warm pages of 16 MiB and
// more, the processor's string copy instruction is about twice as fast as the C library, which reads the
// target before it writes it.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace gradwire::transport
