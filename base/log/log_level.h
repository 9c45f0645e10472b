#pragma once

namespace gradwire {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

}  // namespace gradwire
