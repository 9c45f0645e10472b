#!/usr/bin/env bash
# slurm_test.sh LAUNCH FAKE_SRUN JOB ELASTIC: runs the templates as jobs of two nodes. fake_srun.sh starts both nodes on
# this machine.
set -euo pipefail
launch=$(realpath "$1") job=$(realpath "$3") elastic=$(realpath "$4")
mkdir "$TEST_TMPDIR/bin"
ln -s "$(realpath "$2")" "$TEST_TMPDIR/bin/srun"
export TMPDIR=$TEST_TMPDIR
# The folder from which the jobs are submitted.
mkdir "$TEST_TMPDIR/submit"
fail() { echo "FAIL: $*"; exit 1; }

# The scripts have only options that sbatch knows. All are before the first command, because sbatch ignores later ones.
known='job-name|output|nodes|ntasks-per-node|cpus-per-task|gpus-per-node|time|signal|no-kill'
for script in "$job" "$elastic"; do
  bash -n "$script"
  [[ $(head -n 1 "$script") == "#!/bin/bash" ]] || fail "$script: the first line must be #!/bin/bash"
  options=$(grep -E '^#+SBATCH' "$script")
  wrong=$(grep -vE "^##?SBATCH --($known)(=[^ ]+)?$" <<<"$options" || true)
  [[ -z $wrong ]] || fail "$script: unknown or malformed options: $wrong"
  header=$(grep -vnE '^(#|$)' "$script" | head -n 1 | cut -d: -f1)
  ! tail -n "+$header" "$script" | grep '^#*SBATCH' >/dev/null || fail "$script: options after the first command"
  grep -qx '#SBATCH --ntasks-per-node=1' <<<"$options" || fail "$script: --ntasks-per-node=1 is missing"
done

# A job id whose port is free. The templates use the port 20000 + id modulo 10000.
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

# submit SCRIPT PROGRAM...: runs the script as Slurm does on the first node. The first host of the list is this machine.
submit() {
  local script=$1
  shift
  (cd "$TEST_TMPDIR/submit" && env -i PATH="$TEST_TMPDIR/bin:$PATH" HOME="$TEST_TMPDIR" TMPDIR="$TMPDIR" LAUNCH="$launch" "${variables[@]}" \
    SLURM_JOB_ID="$job_id" SLURM_JOBID="$job_id" SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=1 \
    SLURM_JOB_NODELIST=localhost,node2 SLURM_NODELIST=localhost,node2 SLURM_CPUS_PER_TASK=8 SLURM_NODEID=0 \
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE="1(x2)" SLURM_SUBMIT_DIR="$PWD" timeout 120 "$script" "$@")
}

expect() {
  local wanted
  wanted=$(printf '%s\n' "${@:2}")
  [[ $(sort <<<"$1") == "$wanted" ]] || fail "$(printf 'wrong output: got\n%s\nexpected\n%s' "$1" "$wanted")"
}

# shellcheck disable=SC2016
{
  variables=(NPROC=2)
  output=$(submit "$job" sh -c 'echo "$RANK/$WORLD_SIZE $GROUP_RANK $TORCHELASTIC_RUN_ID"')
  expect "$output" "0/4 0 $job_id.0" "1/4 0 $job_id.0" "2/4 1 $job_id.0" "3/4 1 $job_id.0"

  # Both nodes have the same token, in a file that is gone after the job.
  variables=()
  output=$(submit "$job" sh -c 'cat "/proc/self/fd/$GRADWIRE_TOKEN_FD"; echo; stat -c %a .gradwire-token-*')
  [[ $(sort -u <<<"$output" | wc -l) == 2 ]] || fail "the nodes have different tokens, or files: $output"
  grep -qx 600 <<<"$output" || fail "the mode of the token's file: $output"
  [[ -z $(ls -A "$TEST_TMPDIR/submit") ]] || fail "the token's file is still there"

  variables=()
  code=0
  submit "$job" sh -c 'exit 5' || code=$?
  ((code == 5)) || fail "exit code of a failed job: got $code, expected 5"
  code=0
  submit "$job" || code=$?
  ((code == 2)) || fail "exit code without a program: got $code, expected 2"

  # The second node is lost. The first one, which hosts the store, goes on alone.
  variables=("PET_RDZV_CONF=keep_alive_interval=1,last_call_timeout=0.3")
  code=0
  output=$(submit "$elastic" sh -c '
    echo "$TORCHELASTIC_RESTART_COUNT: $RANK/$WORLD_SIZE"
    [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
    [ "$SLURM_NODEID" = 1 ] && kill -KILL "$PPID"
    exec sleep 1000') || code=$?
  grep -qx "1: 0/1" <<<"$output" || fail "$output"
  ((code == 137)) || fail "exit code after a lost node: got $code, expected 137"
}
echo "all good"
