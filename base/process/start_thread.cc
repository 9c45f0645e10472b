#include "gradwire/base/process/start_thread.h"

#include <pthread.h>

#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire {
namespace {

absl::Status not_started(const std::string& name, int error) {
  return system_status(absl::StrCat("cannot start the thread \"", name, "\""), error, Resource::kThread);
}

}  // namespace

absl::StatusOr<std::thread> start_thread(const std::string& name, absl::AnyInvocable<void()> run) {
  try {
    return std::thread([name = name.substr(0, 15), run = std::move(run)]() mutable {
      pthread_setname_np(pthread_self(), name.c_str());
      run();
    });
  } catch (const std::system_error& error) {
    return not_started(name, error.code().value());
  } catch (const std::bad_alloc&) {
    return status_from_exception(std::current_exception());
  }
}

}  // namespace gradwire
