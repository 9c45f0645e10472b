#include "gradwire/tests/collectives/rank_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gradwire/store/file_store.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

std::string new_path() {
  static int worlds = 0;
  return absl::StrCat(::testing::TempDir(), "/ranks_", getpid(), "_", ++worlds);
}

[[noreturn]] void run_rank(int rank, std::FILE* out, const std::function<void(int, std::FILE*)>& run) {
  setlinebuf(out);
  try {
    run(rank, out);
  } catch (const std::exception& error) {
    std::fprintf(out, "%s\n", error.what());
  }
  std::fflush(out);
  _exit(0);
}

}  // namespace

RankProcesses::RankProcesses(const Options& options,
                             const std::function<void(ProcessGroup&, std::FILE*)>& run)
    : path_(new_path()) {
  start(options.size, [&](int rank, std::FILE* out) {
    if (options.enter) options.enter(rank);
    const auto group = ProcessGroup::create({.backend = options.world.backend,
                                             .timeout = options.timeout,
                                             .world_size = options.size,
                                             .rank = rank,
                                             .store = std::make_shared<store::FileStore>(path_),
                                             .options = options.world.options});
    run(*group, out);
  });
}

RankProcesses::RankProcesses(int size, const std::function<void(int, std::FILE*)>& run) { start(size, run); }

void RankProcesses::start(int size, const std::function<void(int, std::FILE*)>& run) {
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t process = fork();
    if (process == 0) run_rank(rank, fdopen(ends[1], "w"), run);
    close(ends[1]);
    ranks_.push_back({process, fdopen(ends[0], "r")});
  }
}

RankProcesses::~RankProcesses() {
  for (const Rank& rank : ranks_) {
    kill(rank.process, SIGKILL);
    waitpid(rank.process, nullptr, 0);
    std::fclose(rank.lines);
  }
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove(path_, ignored);
}

std::string RankProcesses::line(int rank) const {
  char text[4096] = {};
  return std::fgets(text, sizeof text, ranks_[rank].lines) == nullptr ? "" : std::string(text);
}

}  // namespace gradwire::collectives
