#include "gradwire/base/random_id.h"

#include <random>

namespace gradwire {

uint64_t random_id() {
  std::random_device device;
  uint64_t id = 0;
  while (id == 0) id = (uint64_t{device()} << 32) | device();
  return id;
}

}  // namespace gradwire
