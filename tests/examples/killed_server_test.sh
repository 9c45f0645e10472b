#!/usr/bin/env bash
# The server is killed with SIGKILL while it trains, with no launcher to end the others: every trainer exits non-zero
# within 10 s, with a message that names the server.
set -euo pipefail
parameter_server=$1
work=$(mktemp -d)
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

export MASTER_ADDR=127.0.0.1 WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 ROLE_NAME=default OMP_NUM_THREADS=1
# A free port: the kernel gives one to a listener, who lets go of it at once.
MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
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
read -r -t 60 line <&3 || { echo "FAIL: no progress"; cat "$work"/err*; exit 1; }
[[ $line == *"epoch  1"* ]] || { echo "FAIL: unexpected output: $line"; exit 1; }
cat <&3 >/dev/null &

kill -KILL "${pids[0]}"
killed=$SECONDS
for rank in 1 2; do
  code=0
  timeout 15 tail --pid="${pids[rank]}" -s 0.1 -f /dev/null || { echo "FAIL: trainer $rank lives on"; exit 1; }
  wait "${pids[rank]}" || code=$?
  took=$((SECONDS - killed))
  echo "trainer $rank exited with $code after $took s: $(tail -n 1 "$work/err$rank")"
  ((code != 0 && code < 128)) || { echo "FAIL: exit code $code"; exit 1; }
  ((took <= 10)) || { echo "FAIL: it took $took s"; exit 1; }
  grep -q '"ps"' "$work/err$rank" || { echo "FAIL: the message does not name the server"; cat "$work/err$rank"; exit 1; }
done
