#pragma once

#include "gradwire/base/text/utf8.h"

namespace gradwire::metrics {

// Whether the text of metrics shows this character of a label's value, as it is or with an escape. Other
// characters become '?'.
inline bool is_shown(const Utf8Character& character) {
  const bool control = (character.code < 0x20 && character.code != '\n') || character.code == 0x7f;
  return character.valid && !control;
}

}  // namespace gradwire::metrics
