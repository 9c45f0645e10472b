#!/usr/bin/env bash
# Kills the server with SIGKILL during the training. No launcher ends the trainers. Every trainer must exit with an
# error that names the server, earlier than its silence alone would show the death (HeartbeatOptions).
set -euo pipefail
parameter_server=$1
work=$(mktemp -d)
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

export MASTER_ADDR=127.0.0.1 WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 ROLE_NAME=default OMP_NUM_THREADS=1
# A free port, outside the range from which the kernel takes ports for connections.
MASTER_PORT=$(python3 - <<'PYTHON'
import random
import socket

while True:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", random.randrange(12000, 32000)))
        except OSError:
            continue
        print(listener.getsockname()[1])
        break
PYTHON
)
export MASTER_PORT
mkfifo "$work/progress"
declare -a pids
for rank in 0 1 2; do
  if ((rank == 1)); then
    RANK=$rank LOCAL_RANK=$rank ROLE_RANK=$rank "$parameter_server" --epochs=100000 >"$work/progress" 2>"$work/err$rank" &
  else
    RANK=$rank LOCAL_RANK=$rank ROLE_RANK=$rank "$parameter_server" --epochs=100000 >/dev/null 2>"$work/err$rank" &
  fi
  pids[rank]=$!
done
exec 3<"$work/progress"
read -r -t 120 line <&3 || { echo "FAIL: no progress"; cat "$work"/err*; exit 1; }
[[ $line == *"epoch  1"* ]] || { echo "FAIL: unexpected output: $line"; exit 1; }
cat <&3 >/dev/null &

kill -KILL "${pids[0]}"
killed=$SECONDS
for rank in 1 2; do
  code=0
  timeout 60 tail --pid="${pids[rank]}" -s 0.1 -f /dev/null ||
    { echo "FAIL: trainer $rank still runs 60 s after the death of the server"; exit 1; }
  wait "${pids[rank]}" || code=$?
  took=$((SECONDS - killed))
  echo "trainer $rank exited with $code after $took s: $(tail -n 1 "$work/err$rank")"
  ((code != 0 && code < 128)) || { echo "FAIL: exit code of trainer $rank: got $code, expected 1 to 127"; exit 1; }
  ((took < 20)) || { echo "FAIL: trainer $rank exited after $took s, expected less than 20 s"; exit 1; }
  grep -q '"ps"' "$work/err$rank" || { echo "FAIL: the message does not name the server"; cat "$work/err$rank"; exit 1; }
done
