#!/bin/sh
# Builds one llama-server into PREFIX/NAME/{bin,lib}: [ENGINE_FLAGS="CMAKE FLAG..."] build-engine.sh NAME REPOSITORY REF
# No REPOSITORY: nothing is built. Libraries are found beside the program, with or without LD_LIBRARY_PATH.
set -eu

name=$1 repository=$2 ref=$3
prefix=${PREFIX:-/opt/llama}/$name
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$repository" ]; then
    echo "$name: no repository was named, left out"
    exit 0
fi

git init --quiet "$work/source"
git -C "$work/source" fetch --quiet --depth 1 "$repository" "$ref"
git -C "$work/source" checkout --quiet FETCH_HEAD

# Examples: some forks keep their server there; only its target is built. No page in it: swapd is in front.
cmake -S "$work/source" -B "$work/build" \
    -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
    '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib' \
    -DGGML_NATIVE=OFF \
    -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=ON \
    -DLLAMA_BUILD_UI=OFF \
    ${ENGINE_FLAGS:-}  # words of their own
cmake --build "$work/build" --target llama-server --parallel "${JOBS:-$(nproc)}"

mkdir -p "$prefix/bin" "$prefix/lib"
cp "$(find "$work/build" -type f -name llama-server | head -n 1)" "$prefix/bin/"
find "$work/build" -name '*.so*' -exec cp -P {} "$prefix/lib/" \;
"$prefix/bin/llama-server" --version || [ "${MAY_NOT_RUN:-0}" = 1 ]  # without a driver a CUDA build may not start
