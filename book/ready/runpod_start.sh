#!/bin/bash
# For:     a sweep on a RunPod pod, spot or not, that any later pod with the same network volume
#          takes up again. Everything that must survive lies on the volume.
# Use:     once, on the volume: git clone ADDRESS /workspace/review-residuals
#          then, as the pod's start command, or by hand in tmux:
#          bash /workspace/review-residuals/book/ready/runpod_start.sh \
#              rr sweep --rung 60M --rule standard review --seed 0 1 2 \
#              --corpus tinystories --out /workspace/runs --runner direct
# Image:   one with torch 2.9 or newer that the pod's driver can run, such as
#          runpod/pytorch:1.0.3-cu1281-torch290-ubuntu2404 (choose a pod of CUDA 12.8 or newer).
#          The script checks that first; pip adds what is missing and never replaces torch. On a GPU
#          `rr sweep` itself begins with what `rr doctor` checks, two steps of the largest run too.
# Change:  the command. WORKSPACE, where your volume is mounted elsewhere.
# Checked: bash -n, shellcheck, and run against stand-ins for the volume, the image and its
#          /start.sh: the environment is made once, a run that is sent SIGTERM is saved and taken up
#          again (tests/unit/test_ready_files.py). Not on RunPod; what its
#          /start.sh does was read in github.com/runpod/containers in 2026.
set -euo pipefail

WORKSPACE=${WORKSPACE:-/workspace}
PROJECT=${PROJECT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
SERVICES=${SERVICES:-/start.sh} # the image's own start command: ssh, Jupyter, then sleep
VENV=$WORKSPACE/venv
IMAGE=runpod/pytorch:1.0.3-cu1281-torch290-ubuntu2404

# As start command this script stands in for the image's own, which is therefore started here.
services=
if [ -x "$SERVICES" ] && ! pgrep -f "bash $SERVICES" > /dev/null; then
    bash "$SERVICES" &
    services=$!
fi
child= stopped=
stop() {
    stopped=yes
    if [ -n "$child" ]; then
        kill -TERM "$child" 2> /dev/null || true
    elif [ -n "$services" ]; then
        kill -TERM "$services" 2> /dev/null || true
    fi
}
trap stop TERM # a pod that is taken back sends SIGTERM to its first process alone

# A start command that ends makes the pod start again from the beginning: with the services running,
# stay, so that somebody can look. finish CODE WORDS
finish() {
    child= # from here on the trap ends the services
    echo "$2" >&2
    if [ -n "$services" ] && [ -z "$stopped" ]; then
        echo "ssh and Jupyter go on, and so does the bill: runpodctl stop pod ${RUNPOD_POD_ID:-ID}" >&2
        wait "$services" || true
    elif [ -n "$services" ]; then
        kill -TERM "$services" 2> /dev/null || true
    fi
    exit "$1"
}

if [ $# -eq 0 ]; then
    finish 2 "no command: expected rr sweep … --out $WORKSPACE/runs"
fi
if [ ! -w "$WORKSPACE" ]; then
    finish 2 "$WORKSPACE cannot be written: is the network volume mounted there? (WORKSPACE=…)"
fi

# torch comes with the image, because it must fit the pod's driver.
needed=$(sed -n 's/^  "torch>=\([0-9.]*\)",.*/\1/p' "$PROJECT/pyproject.toml")
if ! torch=$(python3 -c 'import torch; print(torch.__version__)' 2> /dev/null); then
    finish 2 "this image has no torch for its python3; expected torch >= $needed: use the image $IMAGE"
fi
if [ "$(printf '%s\n' "$needed" "${torch%%+*}" | sort -V | head -n 1)" != "$needed" ]; then
    finish 2 "this image has torch $torch, expected >= $needed: use the image $IMAGE"
fi
if ! gpu=$(python3 -c 'import torch; print(torch.cuda.get_device_name())' 2> /dev/null); then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -n 1) || true
    finish 2 "torch $torch finds no GPU (driver: ${driver:-none}): choose a pod whose CUDA version is \
at least that of the image, or an image of an older CUDA"
fi
echo "torch $torch on $gpu"

# The container's own disk is small and is lost with the pod: nothing is kept there.
export RR_CACHE=$WORKSPACE/cache/rr HF_HOME=$WORKSPACE/cache/huggingface
export PIP_CACHE_DIR=$WORKSPACE/cache/pip TORCHINDUCTOR_CACHE_DIR=$WORKSPACE/cache/inductor
mkdir -p "$RR_CACHE" "$HF_HOME" "$PIP_CACHE_DIR"

# Made once for each Python, torch and list of needs; a mark written last says that it is whole.
made_of=$(python3 --version; echo "$torch"; sha256sum < "$PROJECT/pyproject.toml")
if [ "$(cat "$VENV/.ready" 2> /dev/null || true)" != "$made_of" ]; then
    rm -rf "$VENV"
    python3 -m venv --system-site-packages "$VENV"
    echo "torch==$torch" > "$VENV/image.txt"
    "$VENV/bin/python" -m pip install -q -c "$VENV/image.txt" -e "${PROJECT}[book,hub]" -e "$PROJECT/book"
    echo "$made_of" > "$VENV/.ready"
fi
# shellcheck disable=SC1091
source "$VENV/bin/activate"

"$@" &
child=$!
while true; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2> /dev/null || break # else the trap ended the wait, not the child
done
finish "$code" "the command ended with code $code"
