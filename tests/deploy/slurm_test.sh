#!/usr/bin/env bash
# slurm_test.sh LAUNCH FAKE_SRUN JOB ELASTIC: the templates run jobs of two nodes, with an srun that has only this
# machine.
set -euo pipefail
launch=$(realpath "$1") job=$3 elastic=$4
mkdir "$TEST_TMPDIR/bin"
ln -s "$(realpath "$2")" "$TEST_TMPDIR/bin/srun"
export TMPDIR=$TEST_TMPDIR
fail() { echo "FAIL: $*"; exit 1; }

# The options that sbatch is given stand before the first command, where it stops reading, and it knows them.
known='job-name|output|nodes|ntasks-per-node|cpus-per-task|gpus-per-node|time|signal|no-kill'
for script in "$job" "$elastic"; do
  bash -n "$script"
  [[ $(head -n 1 "$script") == "#!/bin/bash" ]] || fail "$script: sbatch wants an interpreter in the first line"
  options=$(grep -E '^#+SBATCH' "$script")
  wrong=$(grep -vE "^##?SBATCH --($known)(=[^ ]+)?$" <<<"$options" || true)
  [[ -z $wrong ]] || fail "$script: $wrong"
  header=$(grep -vnE '^(#|$)' "$script" | head -n 1 | cut -d: -f1)
  ! tail -n "+$header" "$script" | grep -q '^#*SBATCH' || fail "$script: options after the first command"
  grep -qx '#SBATCH --ntasks-per-node=1' <<<"$options" || fail "$script: more than one launcher on a node"
done

# A job id whose port (20000 + id modulo 10000) is free.
job_id=$(python3 - <<'PYTHON'
import random, socket
while True:
    port = random.randrange(20000, 30000)
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            continue
        print(4710000 + port - 20000)
        break
PYTHON
)

# submit SCRIPT PROGRAM...: as the first node runs the script. The list's first host must be this machine.
submit() {
  local script=$1
  shift
  env -i PATH="$TEST_TMPDIR/bin:$PATH" HOME="$TEST_TMPDIR" TMPDIR="$TMPDIR" LAUNCH="$launch" "${variables[@]}" \
    SLURM_JOB_ID="$job_id" SLURM_JOBID="$job_id" SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=1 \
    SLURM_JOB_NODELIST=localhost,node2 SLURM_NODELIST=localhost,node2 SLURM_CPUS_PER_TASK=8 SLURM_NODEID=0 \
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE="1(x2)" SLURM_SUBMIT_DIR="$PWD" timeout 120 "$script" "$@"
}

expect() {
  local wanted
  wanted=$(printf '%s\n' "${@:2}")
  [[ $(sort <<<"$1") == "$wanted" ]] || fail "$(printf 'wanted\n%s\nand got\n%s' "$wanted" "$1")"
}

# shellcheck disable=SC2016
{
  variables=(NPROC=2)
  output=$(submit "$job" sh -c 'echo "$RANK/$WORLD_SIZE $GROUP_RANK $TORCHELASTIC_RUN_ID"')
  expect "$output" "0/4 0 $job_id.0" "1/4 0 $job_id.0" "2/4 1 $job_id.0" "3/4 1 $job_id.0"

  variables=()
  code=0
  submit "$job" sh -c 'exit 5' || code=$?
  ((code == 5)) || fail "the failed job's exit code is $code"
  code=0
  submit "$job" || code=$?
  ((code == 2)) || fail "without a program the exit code is $code"

  # The second node is lost and the first one, which has the store, goes on.
  variables=("PET_RDZV_CONF=keep_alive_interval=1,last_call_timeout=0.3")
  code=0
  output=$(submit "$elastic" sh -c '
    echo "$TORCHELASTIC_RESTART_COUNT: $RANK/$WORLD_SIZE"
    [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
    [ "$SLURM_NODEID" = 1 ] && kill -KILL "$PPID"
    exec sleep 1000') || code=$?
  grep -qx "1: 0/1" <<<"$output" || fail "$output"
  ((code == 137)) || fail "the lost node's exit code is gone: $code"
}
echo "all good"
