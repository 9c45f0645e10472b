#include "gradwire/base/log/contained.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>

#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/safe_text.h"

namespace gradwire {

namespace {

// The text of the exception, without memory.
void add_exception(const std::exception_ptr& exception, SafeText<1024>& text) noexcept {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    text.add("no memory is left");
  } catch (const std::exception& error) {
    text.add(error.what());
  } catch (...) {
    text.add("an exception that is not a std::exception");
  }
}

void write_line(SafeText<1024>& text) noexcept {
  text.add("\n");
  (void)!::write(STDERR_FILENO, text.view().data(), text.view().size());
}

}  // namespace

void log_exception(const char* what) noexcept {
  const std::exception_ptr exception = std::current_exception();
  try {
    log(LogLevel::kError, what, " threw: ", status_from_exception(exception).ToString());
  } catch (...) {
    // The log needs memory.
    SafeText<1024> text;
    text.add("gradwire: ").add(what).add(" threw: ");
    add_exception(exception, text);
    write_line(text);
  }
}

void end_process(const char* what) noexcept {
  SafeText<1024> text;
  text.add("gradwire: ").add(what).add(" failed, and the process ends, because others would wait for it: ");
  add_exception(std::current_exception(), text);
  write_line(text);
  std::abort();
}

}  // namespace gradwire
