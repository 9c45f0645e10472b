#include "gradwire/base/mutex.h"

// ThreadSanitizer does not see the reference count of the prebuilt absl::Status go down, so it takes the
// deletion by the last holder for a race with a copy that another thread made of the status before.
//
// Nor does it see the locks and counters by which the prebuilt gRPC hands a server's call from thread to
// thread, while the parts of it that headers compile into this project are seen. Only functions of gRPC
// itself are named, and none that calls a handler: what handlers do stays checked.
#ifdef GRADWIRE_THREAD_SANITIZER
extern "C" const char* __tsan_default_suppressions() {
  return "race:^Unref$\n"
         "race:absl::*Status::Unref*\n"
         "race:grpc::internal::CallbackWithSuccessTag::\n"
         "race:grpc::ServerUnaryReactor::InternalBindCall\n"
         "race:~ServerUnaryReactor\n"
         "race:SetupReactor\n"
         "race:ServerCallbackUnaryImpl::CallOnDone\n";
}
#endif
