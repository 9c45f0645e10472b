#include "gradwire/base/process/last_words.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "gradwire/base/safe_text.h"

namespace gradwire {
namespace {

constexpr size_t kMaxMessage = 1024;
constexpr size_t kMaxPath = 4096;

// State of the process. It is global because a signal handler has no other access to data. The paths are
// written once, before `owner` is set.
char path[kMaxPath];
char partial_path[kMaxPath];
std::atomic<pid_t> owner{0};

bool write_whole(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put <= 0) return false;
    text.remove_prefix(put);
  }
  return true;
}

}  // namespace

void prepare_last_words() {
  static const bool prepared = [] {
    const char* name = std::getenv("TORCHELASTIC_ERROR_FILE");
    constexpr char kPartial[] = ".last";
    if (name == nullptr || *name == '\0' || std::strlen(name) + sizeof(kPartial) > kMaxPath) return false;
    std::strcpy(path, name);
    std::strcpy(partial_path, name);
    std::strcat(partial_path, kPartial);
    owner.store(getpid());
    return true;
  }();
  (void)prepared;
}

void leave_last_words(absl::string_view message, LastWords kind) {
  // A forked child inherits `owner`, but the file belongs to the parent.
  if (owner.load() != getpid()) return;
  SafeText<2 * kMaxMessage + 256> text;
  text.add(R"({"message": {"message": ")").add_json(message.substr(0, kMaxMessage));
  text.add(R"(", "extraInfo": {"timestamp": ")").add_decimal(static_cast<uint64_t>(time(nullptr)));
  text.add(kind == LastWords::kLeftItsGroup ? R"(", "left_its_group": "true"}}})" : R"("}}})");
  // Publish the file in one step and never replace an existing one: link(2) fails if the name exists.
  const int fd = open(partial_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  const bool written = write_whole(fd, text.view());
  close(fd);
  if (written) (void)!link(partial_path, path);
  unlink(partial_path);
}

}  // namespace gradwire
