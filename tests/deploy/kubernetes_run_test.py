#!/usr/bin/python3
"""kubernetes_run_test.py LAUNCH ETCD JOB ELASTIC: the Jobs' pods as processes of this machine; one of them is killed.

What Kubernetes does for them is done here: JOB_COMPLETION_INDEX, a variable in the arguments, names that resolve.
"""
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import yaml

PATIENCE = 120
# Says who it is, waits for its end in the first round, and ends well in the next.
TRAINER = (
    'echo "$TORCHELASTIC_RESTART_COUNT: $RANK/$WORLD_SIZE"; '
    '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 0; exec sleep 1000'
)


def free_port():
    # Below those that the system gives to connections, which could take it before it is listened on.
    while True:
        port = random.randrange(12000, 32000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Pods:
    def __init__(self, path, replace):
        with open(path, encoding="utf-8") as file:
            (self.job,) = [o for o in yaml.safe_load_all(file) if o["kind"] == "Job"]
        (container,) = self.job["spec"]["template"]["spec"]["containers"]
        words = container["command"] + container["args"]
        # What follows the launcher's options is the program.
        words = words[: words.index("trainer")] + ["sh", "-c", TRAINER]
        for old, new in replace.items():
            if not any(old in word for word in words):
                sys.exit(f"FAIL: {path} has no {old}")
            # The launcher's name is a word of its own; the others are parts of words.
            words = [word.replace(old, new) if old != "launch" or word == old else word for word in words]
        self.words = words
        self.running = {}
        self.output = tempfile.TemporaryFile("w+")

    def start(self, index):
        # Lost nodes are noticed, and missed, for a shorter time than by default, for the test's sake.
        environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": os.environ.get("TEST_TMPDIR", "/tmp"),
            # The launcher links gRPC, whose own synchronisation ThreadSanitizer cannot see; no other sanitizer reads this.
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
            "JOB_COMPLETION_INDEX": str(index),
            "PET_RDZV_CONF": "keep_alive_interval=1,last_call_timeout=0.3",
        }
        self.running[index] = subprocess.Popen(self.words, env=environment, stdout=self.output, stderr=self.output)

    def text(self):
        # Not by reading the file itself, whose position the pods share.
        return os.pread(self.output.fileno(), 1 << 20, 0).decode()

    def fail(self, message):
        sys.exit(f"FAIL: {self.job['metadata']['name']}: {message}\n{self.text()}")

    def wait_for(self, lines):
        deadline = time.monotonic() + PATIENCE
        while not lines <= set(self.text().splitlines()):
            if time.monotonic() > deadline:
                self.fail(f"waited for {sorted(lines)} in vain")
            time.sleep(0.02)

    def kill(self, index):
        pod = self.running.pop(index)
        pod.send_signal(signal.SIGKILL)
        pod.wait(PATIENCE)

    def end(self):
        for index, pod in self.running.items():
            if pod.wait(PATIENCE) != 0:
                self.fail(f"pod {index} has ended with {pod.returncode}")

    def close(self):
        for pod in self.running.values():
            pod.kill()
            pod.wait()


def ranks(restart, size):
    return {f"{restart}: {rank}/{size}" for rank in range(size)}


def run_static(launch, path):
    pods = Pods(path, {"launch": launch, "train-0.train": "localhost", "29500": str(free_port())})
    try:
        for index in range(4):
            pods.start(index)
        pods.wait_for(ranks(0, 8))
        pods.kill(1)
        pods.start(1)  # its successor
        pods.wait_for(ranks(1, 8))
        pods.end()
    finally:
        pods.close()


def run_elastic(launch, etcd, path):
    port = free_port()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        server = subprocess.Popen(
            [etcd, "--name=one", "--data-dir=data", "--listen-peer-urls=unix://peer:0"]
            + ["--initial-advertise-peer-urls=unix://peer:0", "--initial-cluster=one=unix://peer:0"]
            + [f"--{what}-client-urls=http://127.0.0.1:{port}" for what in ("listen", "advertise")],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pods = Pods(path, {"launch": launch, "etcd:2379": f"127.0.0.1:{port}", "$(JOB_UID)": "1-2-3"})
        try:
            for index in range(4):
                pods.start(index)
            pods.wait_for(ranks(0, 8))
            pods.kill(0)
            pods.wait_for(ranks(1, 6))
            pods.end()
        finally:
            pods.close()
            server.kill()
            server.wait()


def main(launch, etcd, job, elastic):
    run_static(os.path.abspath(launch), job)
    etcd = os.path.abspath(etcd)
    if not os.access(etcd, os.X_OK):
        # The file says why (third_party/etcd).
        with open(etcd, encoding="utf-8") as file:
            print("SKIPPED:", file.read())
        return
    run_elastic(os.path.abspath(launch), etcd, elastic)


if __name__ == "__main__":
    main(*sys.argv[1:])
