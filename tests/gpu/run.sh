# What `make gpu` runs: the tests and compute-sanitizer with a soak beside them, which does not mind
# the company, and when all are over the benchmark, which does.
#
#   GPU_PYTHON=python3 SOAK_S=300 sh tests/gpu/run.sh [PYTEST_ARGS...]
#
# What the soak prints is in build/soak.log until it has ended, and then shown. Whatever ends this
# script ends the soak.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
log=$root/build/soak.log
mkdir -p build/nowhere

$GPU_PYTHON tests/gpu/soak.py "$SOAK_S" >"$log" 2>&1 &
soak=$!

end_soak() {
    status=0
    wait "$soak" || status=$?
    soak=
    sed 's/^/soak: /' "$log"
    echo "soak: status $status"
    return "$status"
}

# A job in the background ignores Ctrl-C.
trap 'test -z "$soak" || { kill "$soak" || :; end_soak || :; }' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# From where `import fastloop` finds the installed package.
(cd build/nowhere && $GPU_PYTHON -m pytest -c "$root/pyproject.toml" --rootdir "$root" \
    "$root/tests/gpu" "$@")
for tool in memcheck racecheck initcheck synccheck; do
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 1 \
        $GPU_PYTHON tests/gpu/kernels.py
done
end_soak
$GPU_PYTHON benchmarks/bench_cuda.py --json build/bench_cuda.json
