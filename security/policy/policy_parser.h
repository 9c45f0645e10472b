#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/policy/policy.h"

namespace gradwire::security {

// Parses the text of a policy (docs/security.md). `source` is its name for messages, usually its path.
//
//   text    = { line "\n" }
//   line    = [ rule | default ] [ "#" comment ]
//   rule    = ( "allow" | "deny" ) list ( kind list | "everything" )
//   kind    = "function" | "class" | "operator" | "script" | "reference" | "service"
//   list    = pattern { "," pattern }
//   pattern = a word without blanks, ',', '#' and '"', or a text in double quotes, with \" and \\ in it;
//             '*' stands for any characters
//   default = "default" ( "allow" | "deny" )
//
// InvalidArgument with the source, the line and the column (in bytes, from 1) of the first mistake, and what
// to do about it: "policy.txt:4:7: unknown kind ...".
absl::StatusOr<Rules> parse_policy(absl::string_view text, absl::string_view source);

// `name` as a policy has to write it: in quotes if it needs them.
std::string quoted_if_needed(absl::string_view name);

}  // namespace gradwire::security
