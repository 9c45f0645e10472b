#include "gradwire/tests/scale/scale_services.h"

#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/tests/chaos/census.h"

namespace scale {

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

GRADWIRE_RPC_CLASS(Item, int64_t)
GRADWIRE_RPC_METHOD(Item, number)

gradwire::rpc::RRef<Item> offer(int64_t number) { return gradwire::rpc::RRef<Item>(Item(number)); }
GRADWIRE_RPC(offer)

int64_t read(const gradwire::rpc::RRef<Item>& item) { return item.to_here().number(); }
GRADWIRE_RPC(read)

std::vector<int64_t> holdings() {
  const chaos::Census census = chaos::take_census();
  const gradwire::rpc::AgentTables tables = gradwire::rpc::Agent::current()->tables();
  return {chaos::resident_bytes(), census.descriptors, census.threads,
          static_cast<int64_t>(tables.pending_calls + tables.served_calls + tables.owned_rrefs +
                               tables.held_forks + tables.unconfirmed_children) -
              1};
}
GRADWIRE_RPC(holdings)

}  // namespace scale
