#include "gradwire/base/process/crash_handler.h"

#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/debugging/symbolize.h"
#include "gradwire/base/process/last_words.h"
#include "gradwire/base/safe_text.h"

// These symbols exist only in a program that was built with the sanitizer. The shared libraries may have been
// built without it.
extern "C" void __asan_init() __attribute__((weak));
extern "C" void __tsan_init() __attribute__((weak));

namespace gradwire {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr int kMaxFrames = 64;
// Size of the handler's stack. The handler needs its own stack when the thread's stack has overflowed.
constexpr size_t kStackSize = 64 << 10;

thread_local const ServingScope* serving = nullptr;
std::atomic<bool> installed{false};
std::atomic<void (*)(absl::string_view)> crash_hook{nullptr};
// The thread that crashed first.
std::atomic<pid_t> crashing{0};

// The alternate stack of the calling thread's signal handlers, unless the thread already has one. It is freed
// when the thread ends.
class HandlerStack {
 public:
  HandlerStack() {
    stack_t present{};
    if (sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
    memory_ = mmap(nullptr, kStackSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return;
    const stack_t stack{.ss_sp = memory_, .ss_flags = 0, .ss_size = kStackSize};
    sigaltstack(&stack, nullptr);
  }
  ~HandlerStack() {
    if (memory_ == MAP_FAILED) return;
    const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
    munmap(memory_, kStackSize);
  }
  HandlerStack(const HandlerStack&) = delete;
  HandlerStack& operator=(const HandlerStack&) = delete;

 private:
  void* memory_ = MAP_FAILED;
};

void ensure_handler_stack() {
  thread_local const HandlerStack stack;
  (void)stack;
}

void write_error(absl::string_view text) { (void)!write(STDERR_FILENO, text.data(), text.size()); }

const char* name_of(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "?" : name;
}

// Returns the instruction that the signal interrupted; nullptr if it is unknown.
void* interrupted_instruction(const void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  (void)context;
  return nullptr;
#endif
}

void write_stack(void* interrupted) {
  void* frames[kMaxFrames];
  const int count = backtrace(frames, kMaxFrames);
  int first = 0;
  // Skip the handler's own frames.
  for (int i = 0; i < count; ++i) {
    if (frames[i] == interrupted) first = i;
  }
  for (int i = first; i < count; ++i) {
    char symbol[512];
    // A return address may belong to the next function: the call instruction is before it.
    char* const address = static_cast<char*>(frames[i]) - (i > first ? 1 : 0);
    SafeText<1024> line;
    line.add("  @ ").add_hex(reinterpret_cast<uintptr_t>(frames[i])).add("  ");
    line.add(absl::Symbolize(address, symbol, sizeof(symbol)) ? symbol : "(unknown)").add("\n");
    write_error(line.view());
  }
}

// Everything here must be async-signal-safe: any thread may hold a lock, and the heap may be damaged. There
// are three cases:
// 1. This thread is the first that crashes: it writes the report.
// 2. Another thread has crashed before: wait, so that its report is not cut off.
// 3. The report itself has crashed: `first` is this thread. Go on to the end without a report.
//
// In all cases the default action of the signal then ends the process, so that its parent sees the signal.
void on_crash(int signal, siginfo_t* info, void* context) {
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  pid_t first = 0;
  if (crashing.compare_exchange_strong(first, self)) {
    SafeText<2048> text;
    if (serving != nullptr) {
      text.add("worker \"").add(serving->self()).add("\"");
    } else {
      text.add("process ").add_decimal(getpid());
    }
    text.add(" was killed by SIG").add(name_of(signal));
    if (signal != SIGABRT && info->si_code > 0)
      text.add(" at address ").add_hex(reinterpret_cast<uintptr_t>(info->si_addr));
    if (serving != nullptr) {
      text.add(" while serving \"")
          .add(serving->callee())
          .add("\" for worker \"")
          .add(serving->caller())
          .add("\"");
    }
    // Write the error file first, since the steps below may crash as well.
    leave_last_words(text.view(), LastWords::kCrash);
    const absl::string_view report = text.view();
    write_error(report);
    write_error("\n");
    write_stack(interrupted_instruction(context));
    if (auto* const hook = crash_hook.load()) hook(report);
  } else if (first != self) {
    // The thread that crashed first ends the process after it has written its report. Wait for it, but not
    // indefinitely.
    const timespec timeout{.tv_sec = 10, .tv_nsec = 0};
    nanosleep(&timeout, nullptr);
  }
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  // The signal is blocked until the handler returns.
  raise(signal);
}

bool wanted() {
  const char* choice = std::getenv("GRADWIRE_CRASH_HANDLER");
  if (choice != nullptr && absl::string_view(choice) == "0") return false;
  return __asan_init == nullptr && __tsan_init == nullptr;
}

void install() {
  // The first call of backtrace() loads a library, which a signal handler must not do.
  void* frame[1];
  (void)backtrace(frame, 1);
  prepare_last_words();
  ensure_handler_stack();
  for (const int signal : kSignals) {
    struct sigaction present {};
    const bool taken = sigaction(signal, nullptr, &present) != 0 || (present.sa_flags & SA_SIGINFO) != 0 ||
                       present.sa_handler != SIG_DFL;
    if (taken) continue;
    struct sigaction ours {};
    ours.sa_sigaction = &on_crash;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(signal, &ours, nullptr);
  }
  installed.store(true);
}

}  // namespace

void install_crash_handler() {
  static const bool once = [] {
    if (wanted()) install();
    return true;
  }();
  (void)once;
}

void set_crash_hook(void (*hook)(absl::string_view report)) { crash_hook = hook; }

ServingScope::ServingScope(absl::string_view self, absl::string_view callee, absl::string_view caller)
    : self_(self), callee_(callee), caller_(caller), outer_(serving) {
  if (installed.load(std::memory_order_relaxed)) ensure_handler_stack();
  serving = this;
}

ServingScope::~ServingScope() { serving = outer_; }

}  // namespace gradwire
