#!/usr/bin/env bash
# Write the lock files anew: bash scripts/lock.sh
#
# torch must be found as its CPU build (see scripts/environment.sh). torchvision, torchaudio and
# torchcodec are resolved, because vLLM's metadata asks for them, and left out of the lock: the
# package index has them as CUDA builds, which break `import transformers` beside a CPU torch.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3.11}" -m venv "$tools"
"$tools/bin/pip" install --quiet 'pip-tools>=7.4'

lock() { # lock SOURCE TARGET
  CUSTOM_COMPILE_COMMAND="bash scripts/lock.sh" "$tools/bin/pip-compile" "$1" --output-file "$2" \
    --quiet --upgrade --strip-extras --no-emit-options --no-emit-index-url --no-emit-find-links \
    --no-emit-trusted-host --no-annotate \
    --unsafe-package torchvision --unsafe-package torchaudio --unsafe-package torchcodec
}

lock vllm-0.32.0-cpu.in vllm-0.32.0-cpu.txt
lock test.in test.txt
