#pragma once

#include "gradwire/tools/inspect/analysis/finding.h"

namespace gradwire::tests {

// Whether the table "Problems and what to do" of docs/observability.md has a row with the finding's kind,
// sentence and advice. In the table, `<words>` in a sentence stand for any text.
bool is_in_guide(const inspect::Finding& finding);

}  // namespace gradwire::tests
