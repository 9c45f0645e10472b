#pragma once

namespace gradwire {

// Has the records of all sources written when the process ends. `at_exit` writes them at the end of main() or
// in exit(). SIGTERM, SIGINT, SIGHUP and SIGQUIT write them as a crash does, unless the program has handlers
// of its own for them; then the process ends by the signal, as it would without the handler. Call once.
void write_flight_records_at_end(void (*at_exit)());

}  // namespace gradwire
