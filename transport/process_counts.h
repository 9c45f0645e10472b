#pragma once

namespace gradwire::transport {

// For tests: what /proc says about this process. Only differences mean anything.
int count_descriptors();
int count_threads();

}  // namespace gradwire::transport
