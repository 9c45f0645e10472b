#include "gradwire/rpc/link/agent_tables.h"

#include "absl/strings/str_cat.h"

namespace gradwire::rpc {
namespace {

struct Field {
  const char* name;
  std::size_t AgentTables::*count;
};

#define GRADWIRE_FIELD(name) \
  { #name, &AgentTables::name }
// One count a line.
// clang-format off
constexpr Field kFields[] = {
    GRADWIRE_FIELD(pending_calls),
    GRADWIRE_FIELD(served_calls),
    GRADWIRE_FIELD(held_requests),
    GRADWIRE_FIELD(kept_answers),
    GRADWIRE_FIELD(owned_rrefs),
    GRADWIRE_FIELD(held_forks),
    GRADWIRE_FIELD(unconfirmed_children),
    GRADWIRE_FIELD(remembered_deletes),
    GRADWIRE_FIELD(held_bytes),
    GRADWIRE_FIELD(parted_messages),
    GRADWIRE_FIELD(links),
    GRADWIRE_FIELD(unadmitted_links),
    GRADWIRE_FIELD(observers),
    GRADWIRE_FIELD(numbered_links),
    GRADWIRE_FIELD(open_requests),
    GRADWIRE_FIELD(orphaned_calls),
    GRADWIRE_FIELD(repeat_callers),
    GRADWIRE_FIELD(counted_callers),
    GRADWIRE_FIELD(remembered_answers),
    GRADWIRE_FIELD(values),
    GRADWIRE_FIELD(waits_for_values),
    GRADWIRE_FIELD(unsent_children),
    GRADWIRE_FIELD(reference_messages),
    GRADWIRE_FIELD(unconfirmed_forks),
    GRADWIRE_FIELD(revoked_references),
    GRADWIRE_FIELD(fences_asked),
    GRADWIRE_FIELD(unfenced_workers),
    GRADWIRE_FIELD(accused_strangers),
    GRADWIRE_FIELD(known_workers),
    GRADWIRE_FIELD(gone_workers),
    GRADWIRE_FIELD(watched_workers),
    GRADWIRE_FIELD(open_transfers),
    GRADWIRE_FIELD(arrived_transfers),
    GRADWIRE_FIELD(refused_transfers),
    GRADWIRE_FIELD(unreported_transfers),
    GRADWIRE_FIELD(sharing_probes),
    GRADWIRE_FIELD(waiting_for_workers),
    GRADWIRE_FIELD(device_waits),
};
// clang-format on
#undef GRADWIRE_FIELD

// Every count must be listed above: total() and describe() would leave out any other.
static_assert(sizeof(AgentTables) == sizeof(kFields) / sizeof(kFields[0]) * sizeof(std::size_t));

}  // namespace

void AgentTables::for_each(absl::FunctionRef<void(const char* name, std::size_t count)> visit) const {
  for (const Field& field : kFields) visit(field.name, this->*field.count);
}

std::size_t AgentTables::total() const {
  std::size_t total = 0;
  for (const Field& field : kFields) total += this->*field.count;
  return total;
}

void AgentTables::each(absl::FunctionRef<void(const char* name, std::size_t count)> visit) const {
  for (const Field& field : kFields) visit(field.name, this->*field.count);
}

std::string AgentTables::describe() const {
  std::string text;
  for (const Field& field : kFields) {
    if (this->*field.count > 0)
      absl::StrAppend(&text, text.empty() ? "" : ", ", this->*field.count, " ", field.name);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace gradwire::rpc
