"""llama.cpp's server on a loopback port with the embedded pair: says where it listens, serves until stdin ends."""

import argparse
import os
import sys

import xllamacpp  # type: ignore[import-untyped]

from agent.pairs import EMBEDDED


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--k", type=int, default=0)
    parser.add_argument("--synth-rates", type=float, nargs="*", default=[])
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--api-key")
    args = parser.parse_args()
    # llama.cpp logs to stdout too: the address goes to a copy of it, the log to stderr.
    ours = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    params = xllamacpp.CommonParams()
    params.model.path = str(EMBEDDED / "target.gguf")
    params.port, params.n_ctx, params.n_parallel = 0, 1024, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = not args.no_metrics
    params.warmup = False
    params.verbosity = 1
    if args.api_key:
        params.api_keys = [args.api_key]
    if args.k:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = str(EMBEDDED / "draft.gguf")
        params.speculative.draft.n_max = args.k
        params.speculative.draft.cpuparams.n_threads = 1
        params.speculative.draft.cpuparams_batch.n_threads = 1
        params.speculative.synth_rates = args.synth_rates
    server = xllamacpp.Server(params)
    print(server.listening_address, file=ours, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
