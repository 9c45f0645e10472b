#include "gradwire/tools/inspect/terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

// The sequences are those of ECMA-48 and xterm, which every terminal of today knows.
namespace gradwire::inspect {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l\x1b[2J";  // The second screen, no cursor, empty.
constexpr char kLeave[] = "\x1b[0m\x1b[?25h\x1b[?1049l";
constexpr char kInverted[] = "\x1b[7m";
constexpr char kPlain[] = "\x1b[0m";
constexpr char kEndOfLine[] = "\x1b[K";

void write_text(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      // A terminal that is gone also ends the view (Event::ends).
      return;
    }
  }
}

}  // namespace

struct Terminal::Saved {
  termios settings{};
  sigset_t mask{};
};

absl::StatusOr<std::unique_ptr<Terminal>> Terminal::open() {
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
    return absl::FailedPreconditionError(
        "the live view needs a terminal; use --once for text, or --once --json");
  }
  auto saved = std::make_unique<Saved>();
  if (tcgetattr(STDIN_FILENO, &saved->settings) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot read the terminal's settings: ", strerror(errno)));
  }
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, &saved->mask);
  Descriptor fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  termios raw = saved->settings;
  raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | ISIG | IEXTEN);
  raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  if (fd.get() < 0 || tcsetattr(STDIN_FILENO, TCSANOW, &raw) != 0) {
    const std::string why = strerror(errno);
    pthread_sigmask(SIG_SETMASK, &saved->mask, nullptr);
    return absl::UnavailableError(absl::StrCat("cannot set the terminal: ", why));
  }
  write_text(kEnter);
  return std::unique_ptr<Terminal>(new Terminal(std::move(saved), std::move(fd)));
}

Terminal::Terminal(std::unique_ptr<Saved> saved, Descriptor signals)
    : saved_(std::move(saved)), signals_(std::move(signals)) {}

Terminal::~Terminal() {
  write_text(kLeave);
  tcsetattr(STDIN_FILENO, TCSANOW, &saved_->settings);
  pthread_sigmask(SIG_SETMASK, &saved_->mask, nullptr);
}

Terminal::Size Terminal::size() const {
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row == 0) return {};
  return {window.ws_col, window.ws_row};
}

void Terminal::show(const std::vector<std::string>& lines, std::size_t selected) {
  const Size now = size();
  if (now.width != drawn_size_.width || now.height != drawn_size_.height) {
    shown_.clear();
    drawn_size_ = now;
    write_text("\x1b[2J");
  }
  std::string out;
  std::vector<std::string> wanted;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    wanted.push_back(i == selected ? absl::StrCat(kInverted, lines[i], kPlain) : lines[i]);
    if (i < shown_.size() && shown_[i] == wanted[i]) continue;
    absl::StrAppend(&out, "\x1b[", i + 1, ";1H", wanted[i], kEndOfLine);
  }
  shown_ = std::move(wanted);
  write_text(out);
}

Terminal::Event Terminal::wait(absl::Duration timeout) {
  std::array<pollfd, 2> fds = {pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{signals_.get(), POLLIN, 0}};
  const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, 60'000);
  Event event;
  if (poll(fds.data(), fds.size(), static_cast<int>(ms)) <= 0) return event;
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo != SIGWINCH) event.ends = true;
  }
  if (fds[0].revents != 0) {
    std::array<char, 256> bytes;
    const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got > 0) event.keys.assign(bytes.data(), static_cast<std::size_t>(got));
    if (got <= 0 && (fds[0].revents & (POLLHUP | POLLERR)) != 0) event.ends = true;
  }
  return event;
}

}  // namespace gradwire::inspect
