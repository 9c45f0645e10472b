#include "gradwire/collectives/objects.h"

#include "gradwire/base/error.h"

namespace gradwire::collectives::objects_internal {

std::shared_ptr<Work> run(ObjectExchange exchange, const absl::Status& why, bool later, const Group& group) {
  if (later) return group->exchange_objects_async(std::move(exchange));
  try {
    group->exchange_objects(std::move(exchange));
  } catch (const Error& error) {
    if (why.ok()) throw;
    throw Error(with_context(why, error.status().message()));
  }
  return nullptr;
}

}  // namespace gradwire::collectives::objects_internal
