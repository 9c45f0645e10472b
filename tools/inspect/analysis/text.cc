#include "gradwire/tools/inspect/analysis/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gradwire::inspect {

std::string text_of(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "no limit";
  if (duration < absl::ZeroDuration()) duration = absl::ZeroDuration();
  if (duration < absl::Seconds(1)) return absl::StrCat(absl::ToInt64Milliseconds(duration), " ms");
  const int64_t seconds = absl::ToInt64Seconds(duration);
  if (seconds < 60)
    return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(absl::Trunc(duration, absl::Milliseconds(100))));
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
  return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
}

std::string printable(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c >= 0x20 && c < 0x7f) {
      out.push_back(c);
    } else {
      absl::StrAppend(&out, absl::CHexEscape(absl::string_view(&c, 1)));
    }
  }
  return out;
}

std::string in_quotes(absl::string_view text) { return absl::StrCat("\"", printable(text), "\""); }

}  // namespace gradwire::inspect
