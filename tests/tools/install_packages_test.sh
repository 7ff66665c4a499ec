#!/bin/sh
# tools/install_packages.sh where there is no dpkg: whether all that the build needs is there, and what is
# missing, by its name. Stand-ins are first on the PATH. Usage: install_packages_test.sh SOURCES
# shellcheck disable=SC2016  # lines of stand-ins
set -eu
sources=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/path"
for program in as cat ld mktemp rm sed sh tr; do ln -s "$(command -v $program)" "$work/path"; done

# A compiler that has every header and library but what $HIDDEN names.
cat >"$work/path/c++" <<'C'
#!/bin/sh
! { echo "$*"; cat; } | grep -q -e "${HIDDEN:-nothing is hidden}"
C
ln -s "$(command -v grep)" "$work/path"
printf '#!/bin/sh\necho "cmake version ${CMAKE_IS:-3.25.1}"\n' >"$work/path/cmake"
printf '#!/bin/sh\n' >"$work/path/ninja"
chmod +x "$work/path/c++" "$work/path/cmake" "$work/path/ninja"

# check CODE TEXT [NAME=VALUE...]: how it ends, and what it says.
check() {
  wanted=$1 text=$2 code=0
  shift 2
  env -i PATH="$work/path" "$@" "$sources/tools/install_packages.sh" >"$work/out" 2>&1 || code=$?
  if [ "$code" != "$wanted" ] || ! grep -q -F -e "$text" "$work/out"; then
    cat "$work/out"
    echo "FAILED: exit code $code, not $wanted, or nothing said of: $text"
    exit 1
  fi
}
missing="install by hand, then start again:"
check 0 "all that the build needs is there"
check 0 "all that the build needs is there" CMAKE_IS=4.1.0
check 1 "$missing CMake 3.25 or newer;" CMAKE_IS=3.24.4
check 1 "$missing a compiler of C++20" CXX=none
check 1 "$missing OpenBLAS (cblas.h, libopenblas);" HIDDEN=-lopenblas
check 1 "$missing OpenBLAS (cblas.h, libopenblas);" HIDDEN=cblas.h
check 1 "nlohmann/json 3.11 or newer (nlohmann/json.hpp), CLI11 2.1 or newer (CLI/CLI.hpp);" \
  'HIDDEN=\(json\|CLI\).hpp'
check 1 "$missing OpenSSL 3 (openssl/evp.h, libcrypto);" HIDDEN=evp.h
check 1 "nlohmann-json3-dev" HIDDEN=doctest.h
rm "$work/path/ninja"
check 1 "$missing Ninja;"
