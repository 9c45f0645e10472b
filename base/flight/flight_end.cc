#include "gradwire/base/flight/flight_end.h"

#include <signal.h>

#include <cstdlib>
#include <utility>

#include "gradwire/base/flight/flight_source.h"

namespace gradwire {
namespace {

constexpr std::pair<int, const char*> kSignals[] = {{SIGTERM, "the process was ended by SIGTERM"},
                                                    {SIGINT, "the process was ended by SIGINT"},
                                                    {SIGHUP, "the process was ended by SIGHUP"},
                                                    {SIGQUIT, "the process was ended by SIGQUIT"}};

// The signal has its default action again (SA_RESETHAND), and is blocked until this function returns.
void on_signal(int signo) {
  for (const auto& [number, reason] : kSignals) {
    if (number == signo) dump_flight_records_in_crash(reason);
  }
  raise(signo);
}

}  // namespace

void write_flight_records_at_end(void (*at_exit)()) {
  std::atexit(at_exit);
  for (const auto& [number, reason] : kSignals) {
    struct sigaction current {};
    if (sigaction(number, nullptr, &current) != 0 || (current.sa_flags & SA_SIGINFO) != 0 ||
        current.sa_handler != SIG_DFL)
      continue;
    struct sigaction ours {};
    ours.sa_handler = &on_signal;
    ours.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(number, &ours, nullptr);
  }
}

}  // namespace gradwire
