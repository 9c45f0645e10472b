#!/usr/bin/python3
"""kubernetes_run_test.py LAUNCH ETCD JOB ELASTIC: runs the pods of the Jobs as processes, and kills one of them.

The test replaces Kubernetes: it sets JOB_COMPLETION_INDEX, and replaces variables and host names in the arguments.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

import yaml

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../python"))
from free_port import free_port

TIMEOUT = 120
# The program prints its round, rank and world size. In the first round it runs until it is killed; in the next one it
# exits with 0.
TRAINER = (
    'echo "$TORCHELASTIC_RESTART_COUNT: $RANK/$WORLD_SIZE"; '
    '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 0; exec sleep 1000'
)


def token_file(launch):
    # The test has no root user whose file a group may read, as in a pod.
    path = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "token")
    subprocess.run([launch, f"--make_token={path}"], check=True)
    return path


class Pods:
    def __init__(self, path, replace):
        with open(path, encoding="utf-8") as file:
            (self.job,) = [o for o in yaml.safe_load_all(file) if o["kind"] == "Job"]
        (container,) = self.job["spec"]["template"]["spec"]["containers"]
        words = container["command"] + container["args"]
        # Replace the program, which follows the options of the launcher.
        words = words[: words.index("trainer")] + ["sh", "-c", TRAINER]
        for old, new in replace.items():
            if not any(old in word for word in words):
                sys.exit(f"FAIL: {path} does not contain {old}")
            # The name of the launcher is a whole word. The other texts may be parts of words.
            words = [word.replace(old, new) if old != "launch" or word == old else word for word in words]
        self.words = words
        self.running = {}
        self.output = tempfile.TemporaryFile("w+")

    def start(self, index):
        # Shorter times than the defaults until a lost node is noticed and the group is formed again: a faster test.
        environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": os.environ.get("TEST_TMPDIR", "/tmp"),
            # The launcher links gRPC, which is not instrumented. ThreadSanitizer does not see its synchronisation.
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
            "JOB_COMPLETION_INDEX": str(index),
            "PET_RDZV_CONF": "keep_alive_interval=1,last_call_timeout=0.3",
        }
        self.running[index] = subprocess.Popen(self.words, env=environment, stdout=self.output, stderr=self.output)

    def text(self):
        # os.pread does not change the position in the file, which the pods share.
        return os.pread(self.output.fileno(), 1 << 20, 0).decode()

    def fail(self, message):
        sys.exit(f"FAIL: {self.job['metadata']['name']}: {message}\n{self.text()}")

    def wait_for(self, lines):
        deadline = time.monotonic() + TIMEOUT
        while not lines <= set(self.text().splitlines()):
            if time.monotonic() > deadline:
                self.fail(f"the pods did not print {sorted(lines)} within {TIMEOUT} s")
            time.sleep(0.02)

    def kill(self, index):
        pod = self.running.pop(index)
        pod.send_signal(signal.SIGKILL)
        pod.wait(TIMEOUT)

    def end(self):
        for index, pod in self.running.items():
            if pod.wait(TIMEOUT) != 0:
                self.fail(f"exit code of pod {index}: got {pod.returncode}, expected 0")

    def close(self):
        for pod in self.running.values():
            pod.kill()
            pod.wait()


def ranks(restart, size):
    return {f"{restart}: {rank}/{size}" for rank in range(size)}


def run_static(launch, path):
    pods = Pods(path, {"launch": launch, "train-0.train": "localhost", "29500": str(free_port()),
                       "/run/gradwire/token": token_file(launch)})
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
        pods = Pods(path, {"launch": launch, "etcd:2379": f"127.0.0.1:{port}", "$(JOB_UID)": "1-2-3",
                           "/run/gradwire/token": token_file(launch)})
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
        # Without etcd the file contains the reason (third_party/etcd).
        with open(etcd, encoding="utf-8") as file:
            print("SKIPPED:", file.read())
        return
    run_elastic(os.path.abspath(launch), etcd, elastic)


if __name__ == "__main__":
    main(*sys.argv[1:])
