#!/usr/bin/env bash
# Makes both locks from requirements.in:
#   build_defs/update_locks.sh             keeps the locked versions that still fit
#   build_defs/update_locks.sh --upgrade   takes the newest that fit
# requirements_lock.txt (MODULE.bazel mode) has hashes and the CUDA packages that
# PyPI's torch asks for.  requirements_cpu_lock.txt (WORKSPACE mode) is the same list
# without hashes and without those: there pip takes whichever build of torch the
# machine offers, CPU or CUDA, and what that build itself asks for.
# fbgemm-gpu and recbole's dependencies are left out by [tool.uv] in pyproject.toml.
# Needs uv (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."

uv pip compile requirements.in --output-file requirements_lock.txt --quiet \
  --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
  --custom-compile-command build_defs/update_locks.sh "$@"

{
  echo "# This file was made from requirements_lock.txt by build_defs/update_locks.sh."
  sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' requirements_lock.txt | grep -Ev '^(nvidia|cuda)-'
} >requirements_cpu_lock.txt
