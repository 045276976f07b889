#!/bin/bash
# For:     a sweep as a job on a Ray cluster that stands already: each run takes a GPU (or a stated
#          share of one) wherever one is free; runs of a lost node go on elsewhere.
# Use:     ray start --head …; ray start --address=HEAD:6379 on the other nodes; then
#          RAY_ADDRESS=http://HEAD:8265 bash book/ready/ray_job.sh \
#              --rung 60M 150M --rule standard constant review --seed 0 1 2 \
#              --corpus tinystories --out /shared/runs
# Change:  the sweep. --out: a folder that every node sees at the same path; RR_CACHE, likewise.
#          Ray, of the cluster's version, torch and the needs of rr are on every node already; the
#          code travels with the job (what git ignores stays behind).
# Checked: bash -n and shellcheck, and with a stand-in for ray that shows the command
#          (tests/unit/test_ready_files.py).
set -euo pipefail

: "${RAY_ADDRESS:?the address of the cluster\'s job server, as in http://HEAD:8265}"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ $# -eq 0 ]; then
    echo "no sweep: --rung … --rule … --out /shared/runs is accepted" >&2
    exit 2
fi
cache=${RR_CACHE:-/shared/cache/rr}
# `ray job stop` sends SIGTERM, and SIGKILL after three seconds: a checkpoint can need more
environment='{"env_vars": {"RR_CACHE": "'$cache'", "RAY_JOB_STOP_WAIT_TIME_S": "630"}}'
exec ray job submit --no-wait --working-dir . --runtime-env-json "$environment" -- \
    python -m rrstudy.cli sweep --engine ray --address auto "$@"
