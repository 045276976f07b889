#!/bin/bash
# For:     a sweep on a RunPod pod, spot or not, that any later pod with the same network volume
#          takes up again. Everything that must survive lies on the volume.
# Use:     once, on the volume: git clone ADDRESS /workspace/review-residuals
#          then, as the pod's start command, or by hand in tmux:
#          bash /workspace/review-residuals/book/ready/runpod_start.sh \
#              rr sweep --rung 60M --rule standard review --seed 0 1 2 \
#              --corpus tinystories --out /workspace/runs --runner direct
# Change:  the command. WORKSPACE, where your volume is mounted elsewhere. The environment sees the
#          image's own torch (which fits its driver) and adds what is missing.
# Checked: bash -n, shellcheck, and run twice against a stand-in for the volume: the environment is
#          made once, a run that is sent SIGTERM is saved and taken up again
#          (tests/unit/test_ready_files.py). Not on RunPod.
set -euo pipefail

WORKSPACE=${WORKSPACE:-/workspace}
PROJECT=${PROJECT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
VENV=$WORKSPACE/venv
if [ $# -eq 0 ]; then
    echo "no command: rr sweep … --out $WORKSPACE/runs is accepted" >&2
    exit 2
fi
if [ ! -w "$WORKSPACE" ]; then
    echo "$WORKSPACE cannot be written: is the network volume mounted there? (WORKSPACE=…)" >&2
    exit 2
fi

# The container's own disk is small and is lost with the pod: nothing is kept there.
export RR_CACHE=$WORKSPACE/cache/rr HF_HOME=$WORKSPACE/cache/huggingface
export PIP_CACHE_DIR=$WORKSPACE/cache/pip TORCHINDUCTOR_CACHE_DIR=$WORKSPACE/cache/inductor
mkdir -p "$RR_CACHE" "$HF_HOME" "$PIP_CACHE_DIR"

# Made once for each Python and each list of needs; a mark written last says that it is whole.
made_of=$(python3 --version; sha256sum < "$PROJECT/pyproject.toml")
if [ "$(cat "$VENV/.ready" 2> /dev/null || true)" != "$made_of" ]; then
    rm -rf "$VENV"
    python3 -m venv --system-site-packages "$VENV"
    "$VENV/bin/python" -m pip install -q -e "${PROJECT}[book,hub]"
    echo "$made_of" > "$VENV/.ready"
fi
# shellcheck disable=SC1091
source "$VENV/bin/activate"

# A pod that is taken back sends SIGTERM to its first process alone: this script, as start command.
"$@" &
child=$!
trap 'kill -TERM "$child" 2> /dev/null || true' TERM
while true; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2> /dev/null || break # else the trap ended the wait, not the child
done
exit "$code"
