#pragma once

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::security {

// A secret text, for example a job's token. Copies share one place in memory, which is wiped when the last of
// them ends. It cannot be printed or logged by mistake. Immutable and thread-safe, as a shared_ptr is.
class Secret {
 public:
  // An empty secret.
  Secret() = default;
  // Copies `text`. The caller wipes its own copy, or gives it to take().
  explicit Secret(absl::string_view text);
  // Copies `text`, then wipes and empties it.
  static Secret take(std::string& text);

  // The text itself, which lives as long as a copy of this object. Never put it into a message.
  absl::string_view reveal() const;
  std::size_t size() const { return reveal().size(); }
  bool empty() const { return size() == 0; }

  // Takes a time that depends on the sizes only, so that nobody can measure which bytes are right.
  friend bool operator==(const Secret& a, const Secret& b);
  friend std::ostream& operator<<(std::ostream&, const Secret&) = delete;

 private:
  class Bytes;

  // nullptr for an empty secret.
  std::shared_ptr<const Bytes> bytes_;
};

// Overwrites the bytes of `text`, those behind its end too, in a way that the compiler does not remove, and
// empties it.
void wipe(std::string& text);

// Compares in a time that depends on the sizes only.
bool equal_in_constant_time(absl::string_view a, absl::string_view b);

}  // namespace gradwire::security
