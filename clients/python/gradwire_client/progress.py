"""A line in the terminal that shows how much of a large argument or result has been transferred."""

import sys
import time

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


class ProgressLine:
    """A function for `progress` or `result_progress` of a call. It writes nothing if `stream` is not a terminal.

        client.call("train", x, progress=ProgressLine("sending"))
    """

    def __init__(self, label="sending", stream=None, interval=0.1):
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._interval = interval
        self._begin = self._shown = None

    def __call__(self, done, total):
        now = time.monotonic()
        if self._begin is None:
            self._begin = now
        soon = self._shown is not None and now - self._shown < self._interval
        if not self._stream.isatty() or (soon and done < total):
            return
        self._shown = now
        size, unit = next((size, unit) for size, unit in UNITS if total >= size or size == 1)
        percent = 100 if total == 0 else 100 * done // total
        rate = done / max(now - self._begin, 1e-3) / (1 << 20)
        amount = f"{done / size:.1f} of {total / size:.1f} {unit}"
        self._stream.write(f"\r{self._label} {amount}, {percent} %, {rate:.0f} MiB/s\033[K")
        if done >= total:
            self._stream.write("\n")
            self._begin = self._shown = None
        self._stream.flush()
