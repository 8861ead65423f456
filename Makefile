# Two commands to remember: `make demo` and `make test`.
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: setup demo test serve lint bench soak docs build deploy clean

setup: $(VENV)/.ready  ## everything the other targets need, once

$(VENV)/.ready: pyproject.toml tools/setup.sh
	bash tools/setup.sh $(VENV)

demo: setup  ## one real measured run over HTTP and a websocket, verified offline
	$(PY) -m tools.demo

test: setup  ## the whole test suite: what decodes one by one, as it is measured; the rest on all processors
	$(PY) -m pytest -n auto --dist loadfile tests/shared tests/edge tests/bench
	$(PY) -m pytest tests/agent tests/tools tests/system

serve: setup  ## agent and local edge on 127.0.0.1:8080 until Ctrl-C
	$(PY) -m tools.serve

lint: setup  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: setup  ## benchmarks, written to bench/results/
	$(PY) -m bench

soak: setup  ## a thousand short runs with everything that disturbs a tower in months, in minutes
	$(PY) -m tools.soak

docs: setup  ## this documentation as web pages, in dist/docs; its generated parts are written by `python -m tools.docs`
	$(PY) -m tools.docs --check
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet docs dist/docs

build: setup  ## the Lambda artifact with provenance and bill of materials, in dist/; ARCH=x86_64 for the other one
	$(PY) -m tools.build --arch $(or $(ARCH),arm64)

deploy: setup  ## the edge, to AWS: asks for its parameters the first time; see docs/deploy.md
	$(PY) -m tools.deploy $(if $(ARCH),--arch $(ARCH)) $(if $(GUIDED),--guided)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .aws-sam dist
