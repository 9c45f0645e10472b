#include "gradwire/base/mutex.h"

// ThreadSanitizer cannot see the prebuilt absl::Status decrement its reference count. So it reports a race
// between the deletion by the last owner and an earlier copy of the status by another thread.
//
// It also cannot see the locks and counters with which the prebuilt gRPC passes a server's call from thread
// to thread, but it does see the parts of gRPC that are compiled into this project from headers. The list
// names only functions of gRPC itself, and none that calls a handler: handlers stay checked.
#ifdef GRADWIRE_THREAD_SANITIZER
extern "C" const char* __tsan_default_suppressions() {
  return "race:^Unref$\n"
         "race:absl::*Status::Unref*\n"
         "race:grpc::internal::CallbackWithSuccessTag::\n"
         "race:grpc::Server*Reactor*::InternalBind\n"
         "race:~Server*Reactor\n"
         "race:SetupReactor\n"
         "race:ServerCallback*Impl::reactor\n"
         "race:ServerCallback*Impl::CallOnDone\n";
}
#endif
