"""Child processes of tests."""

import os
import re
import signal
import subprocess
import threading

# Seconds for a process to start, to print what a test waits for, or to end. libtorch takes some of them.
LIMIT = 60


class Process:
    """A child process whose lines of output are read as they come."""

    def __init__(self, *command, env=None):
        self.lines = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=env, start_new_session=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self.lines.append("(end)")
            self._news.notify_all()

    def wait_for(self, pattern, count=1):
        """The matches of the first `count` lines that match."""
        def found():
            return [each for each in (re.search(pattern, line) for line in self.lines) if each]

        with self._news:
            self._news.wait_for(lambda: len(found()) >= count or "(end)" in self.lines, LIMIT)
            if len(found()) < count:
                raise AssertionError(f"expected {count} lines with {pattern!r}, got:\n" + "\n".join(self.lines))
            return found()

    def stop(self):
        """Ends it with SIGTERM. Returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self):
        """Kills it and its children that have not left its process group, as the loss of a host does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        return self.wait()

    def wait(self):
        """Waits for its end. Returns its exit status. Kills it if it does not end."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        self._reader.join(LIMIT)
        if not self._reader.is_alive():
            self.process.stdout.close()
        return status
