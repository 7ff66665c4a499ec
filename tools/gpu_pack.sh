#!/usr/bin/env bash
# Builds what tools/gpu_check.sh runs, and packs it with the libraries it needs into
# build/gpu-pack/pack.tar.gz, for a machine with a GPU that cannot build: bin/, stripped, lib/, which has
# all but CUDA's libraries, cuDNN, NCCL and the C library (of which that machine needs one as new as
# this one's), share/, the cost profiles, tests/, the scripts that it runs, and tools/gpu_check.sh itself.
#
#   tools/gpu_pack.sh [BUILD FILE]    BUILD: what was built there is packed into FILE, and nothing built
set -euo pipefail
if [ "${1-}" = -h ] || [ "${1-}" = --help ]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'
  exit 0
fi
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/release}
pack=${2:-$root/build/gpu-pack/pack.tar.gz}
most=$((60 * 1024 * 1024))
programs=(contraflow contraflow-run contraflow-run-cuda contraflow_gpu_test bench_gpu probe_nccl)

fail() {
  echo "gpu_pack.sh: error: $1" >&2
  exit 1
}
if [ $# -eq 0 ]; then
  (cd "$root" && cmake --preset release -DCF_CUDA=ON)
  cmake --build "$build" --target "${programs[@]}" contraflow_mlp_stages contraflow_failing_stages
fi
mkdir -p "$(dirname "$pack")"
work=$(mktemp -d)
trap 'rm -rf "$work" "$pack.new"' EXIT
trap 'exit 1' INT TERM
mkdir -p "$work"/{bin,lib,lists,share/contraflow}
cp -r "$root/tools/profiles" "$work/share/contraflow"
(cd "$root" && cp --parents tools/gpu_check.sh tests/runtime/nccl/nccl_one_gpu_test.sh tests/python/torch_{gpu,model,layers}.py tools/bench/{layer_times,torch_schedules}.py \
  tools/python/contraflow/torch/*.py "$work")
for program in "${programs[@]}"; do
  compgen -G "$build/t*/$program" >/dev/null || fail "$build has no $program: build it there"
  strip -o "$work/bin/$program" "$build"/t*/"$program"
done
strip -o "$work/bin/mlp_stages.so" "$build/runtime/mlp_stages.so"
strip -o "$work/bin/failing_stages.so" "$build/tests/failing_stages.so"
# The loader comes with the C library, and so do the parts that were folded into it.
system='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv))[-.]|^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nv)'
ldd "$work"/bin/* | awk '$2 == "=>" { print $1, $3 }' | sort -u | while read -r name path; do
  [[ $name =~ $system ]] && continue
  [ -f "$path" ] || fail "$name is not found, which the programs need"
  cp -L "$path" "$work/lib/$name"
done
# If one of these is missing, programs start all the same, and it refuses every call: its error is that it
# is not initialized, of NCCL one of the system.
for program in "$work"/bin/*; do nm -D --undefined-only "$program"; done |
  sed -n 's/.* U \([A-Za-z]*\).*/\1/p' | sort -u >"$work/symbols"
while read -r library soname error; do
  mkdir "$work/lib/no-$library"
  grep "^$library" "$work/symbols" |
    sed -e 's/.*Get[A-Za-z]*\(String\|Name\|LastError\)$/const char* &() { return "it is not there"; }/; t' \
      -e "s/.*LtGetVersion\$/unsigned long &() { return 0; }/; t" -e "s/.*/int &() { return $error; }/" |
    cc -shared -fPIC -Wl,-soname,"$soname" -Wl,--default-symver -xc -o "$work/lib/no-$library/$soname" -
done <<<'cudnn libcudnn.so.9 1001
nccl libnccl.so.2 2
cublasLt libcublasLt.so.13 1'
git -C "$root" describe --always --dirty >"$work/version" 2>/dev/null || echo unknown >"$work/version"

# If libraries are missing, programs cannot list what they have.
"$build/tests/contraflow_gpu_test" --list-test-cases --no-version >"$work/lists/cases"
"$build/tools/bench_gpu" --list >"$work/lists/families"

# The same files give the same archive; packed harder it takes twice as long and is 4 % smaller.
tar -C "$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - bin lib lists share tests tools version |
  gzip -n -4 >"$pack.new"
bytes=$(stat -c %s "$pack.new")
if [ "$bytes" -gt $most ]; then
  rm "$pack.new"
  fail "the pack would have $bytes bytes, and may have at most $most"
fi
mv "$pack.new" "$pack"
echo "$pack: $bytes bytes"
